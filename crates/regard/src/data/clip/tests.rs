//! Layouts, parts and faults of small clips that are written here.

use std::collections::HashSet;
use std::fs;
use tempfile::TempDir;

use super::*;
use crate::data::dataset::{Origin, Origins};
use crate::testing::write_clip;

const PARTS: [Part; 3] = [Part::Train, Part::Validation, Part::Test];

/// A folder with clips of two frames at these paths, and texts.
fn folder(clips: &[&str], texts: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    clips.iter().enumerate().for_each(|(seed, path)| write_clip(&root.path().join(path), 2, [4, 6], seed as u64));
    for (path, text) in texts {
        fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
        fs::write(root.path().join(path), text).unwrap();
    }
    root
}

fn source(root: &TempDir) -> &str {
    root.path().to_str().unwrap()
}

/// The path below the folder and the class of every clip of a part.
fn clips(root: &TempDir, part: Part) -> Vec<String> {
    let dataset = open(source(root), part).unwrap();
    let name = |index: usize| dataset.name(index).replace(&format!("{}/", root.path().display()), "");
    (0..dataset.len()).map(|index| format!("{} {}", name(index), dataset.classes()[dataset.class(index)])).collect()
}

fn origins(root: &TempDir) -> [String; 2] {
    let parts = open_parts(source(root)).unwrap();
    [parts.origins.validation.to_string(), parts.origins.test.to_string()]
}

fn layout_of(root: &TempDir) -> &'static str {
    open_parts(source(root)).unwrap().layout
}

fn many(pattern: impl Fn(usize) -> String, count: usize) -> Vec<String> {
    (0..count).map(pattern).collect()
}

fn texts(paths: &[String]) -> Vec<&str> {
    paths.iter().map(String::as_str).collect()
}

#[test]
fn a_folder_of_classes_without_parts_is_split() {
    let paths = many(|i| format!("{}/{i}.gif", if i < 10 { "wave" } else { "point" }), 20);
    let root = folder(&texts(&paths), &[]);
    assert_eq!(layout_of(&root), "folder of classes");
    let [train, validation, test] = PARTS.map(|part| clips(&root, part));
    assert_eq!([train.len(), validation.len(), test.len()], [14, 2, 4]);
    assert_eq!(origins(&root), ["a tenth of train", "a fifth of every class"]);
    let all: HashSet<String> = [train, validation, test].concat().into_iter().collect();
    assert_eq!(all.len(), 20);
    assert_eq!(clips(&root, Part::All).len(), 20);
    assert!(is_clips(source(&root)));
}

#[test]
fn folders_of_parts_are_the_parts_and_val_alone_is_the_test() {
    let mut paths = many(|i| format!("train/wave/{i}.gif"), 12);
    paths.extend(["val/wave/a.gif".into(), "val/point/b.gif".into()]);
    let root = folder(&texts(&paths), &[]);
    assert_eq!(clips(&root, Part::Test), ["val/point/b.gif point", "val/wave/a.gif wave"]);
    assert_eq!((clips(&root, Part::Train).len(), clips(&root, Part::Validation).len()), (11, 1));
    assert_eq!(origins(&root), ["a tenth of train", "val/"]);
    paths.push("test/wave/c.gif".into());
    let root = folder(&texts(&paths), &[]);
    assert_eq!(clips(&root, Part::Test), ["test/wave/c.gif wave"]);
    assert_eq!((clips(&root, Part::Train).len(), clips(&root, Part::Validation).len()), (12, 2));
    assert_eq!(origins(&root), ["val/", "test/"]);
}

#[test]
fn folders_of_frames_are_clips_and_strays_and_empty_classes_are_told() {
    let paths = ["wave/one/1.png", "wave/one/2.png", "wave/one/10.png", "point/two/1.png", "point/two/2.png"];
    let root = tempfile::tempdir().unwrap();
    for (seed, path) in paths.iter().enumerate() {
        crate::testing::write_picture(&root.path().join(path), [4, 6], seed as u64);
    }
    assert_eq!(clips(&root, Part::All), ["point/two point", "wave/one wave"]);
    assert!(!is_clips(source(&root)), "they could be pictures");
    let all = open(source(&root), Part::All).unwrap();
    assert_eq!(all.length(1).unwrap().frames, 3);
    let last = Picture::open(&root.path().join("wave/one/10.png")).unwrap();
    assert_eq!(all.frames(1, &[2]).unwrap(), [last]);
    fs::create_dir(root.path().join("clap")).unwrap();
    crate::testing::write_picture(&root.path().join("wave/3.png"), [4, 6], 9);
    let issues: Vec<String> = survey(source(&root)).unwrap().issues.iter().map(ToString::to_string).collect();
    assert_eq!(issues.len(), 2, "{issues:?}");
    assert!(issues[0].contains("clap: class: a folder without clips"), "{issues:?}");
    assert!(issues[1].contains("wave: class: 1 pictures that are in no clip's folder"), "{issues:?}");
}

#[test]
fn pictures_in_folders_of_classes_are_no_clips() {
    let root = tempfile::tempdir().unwrap();
    for path in ["rose/1.png", "rose/2.png", "tulip/1.png"] {
        crate::testing::write_picture(&root.path().join(path), [4, 6], 0);
    }
    let error = open(source(&root), Part::All).unwrap_err().to_string();
    assert!(error.contains("no dataset of clips; known are\n  UCF101: classInd.txt"), "{error}");
    assert!(!is_clips(source(&root)) && !is_clips("/no/such/folder") && is_clips("clips-garment"));
    assert!(open("/no/such/folder", Part::All).unwrap_err().to_string().contains("or `clips` or `clips-garment`"));
}

#[test]
fn groups_of_ucf101_stay_together_and_its_lists_are_its_parts() {
    let clip = |group: usize, clip: usize| format!("UCF-101/Rowing/v_Rowing_g{group:02}_c{clip:02}.gif");
    let paths: Vec<String> = (1..=8).flat_map(|group| (1..=3).map(move |one| clip(group, one))).collect();
    let line = |path: &String| path.trim_start_matches("UCF-101/").to_string();
    let train: Vec<String> = paths[6..].iter().map(|path| line(path) + " 2\n").collect();
    let test: Vec<String> = paths[..6].iter().map(|path| line(path) + "\n").collect();
    let files = [
        ("ucfTrainTestlist/classInd.txt", "1 Archery\n2 Rowing\n".to_string()),
        ("ucfTrainTestlist/trainlist01.txt", train.concat()),
        ("ucfTrainTestlist/testlist01.txt", test.concat()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let root = folder(&texts(&paths), &files);
    assert_eq!(layout_of(&root), "UCF101");
    assert_eq!(open(source(&root), Part::Train).unwrap().classes(), ["Archery", "Rowing"]);
    let [train, validation, test] = PARTS.map(|part| clips(&root, part));
    assert_eq!([train.len(), validation.len(), test.len()], [15, 3, 6]);
    let groups = |clips: &[String]| clips.iter().map(|clip| clip.split("_c").next().unwrap().to_string()).collect();
    let [train, validation]: [HashSet<String>; 2] = [groups(&train), groups(&validation)];
    assert!(validation.len() == 1 && train.is_disjoint(&validation));
    // the same names in a folder of classes, which has no lists
    let plain = folder(&texts(&paths.iter().map(line).collect::<Vec<_>>()), &[]);
    let parts: [HashSet<String>; 3] = PARTS.map(|part| groups(&clips(&plain, part)));
    assert_eq!(parts.iter().map(HashSet::len).sum::<usize>(), 8, "no group is in two parts: {parts:?}");
}

#[test]
fn lists_of_hmdb51_are_its_parts() {
    let film = |index: usize| format!("Film{}_wave_f_cm_np1_fr_med_{index}.gif", index / 2);
    let paths = many(|index| format!("wave/{}", film(index)), 12);
    let lines: Vec<String> =
        (0..12).map(|index| format!("{} {} \n", film(index), [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0][index])).collect();
    let root = folder(&texts(&paths), &[("splits/wave_test_split1.txt", &lines.concat())]);
    assert_eq!(layout_of(&root), "HMDB51");
    let [train, validation, test] = PARTS.map(|part| clips(&root, part));
    assert_eq!([train.len(), validation.len(), test.len()], [6, 2, 3], "both clips of a film");
}

#[test]
fn templates_of_something_something_are_its_classes() {
    let list = |ids: std::ops::Range<usize>| {
        let line = |id: usize| {
            format!(
                "{{\"id\": \"{id}\", \"label\": \"l\", \"template\": \"Moving [something] {}\"}}",
                ["up", "down"][id % 2]
            )
        };
        format!("[{}]", ids.map(line).collect::<Vec<_>>().join(","))
    };
    let labels = "{\"Moving something up\": \"1\", \"Moving something down\": \"0\"}";
    let (train, validation) = (list(0..8), list(8..10));
    let files =
        [("labels/labels.json", labels), ("labels/train.json", &train), ("labels/validation.json", &validation)];
    let paths = many(|id| format!("20bn-something-something-v2/{id}.gif"), 10);
    let root = folder(&texts(&paths), &files);
    assert_eq!(layout_of(&root), "Something-Something v2");
    let test = open(source(&root), Part::Test).unwrap();
    assert_eq!(test.classes(), ["Moving something down", "Moving something up"]);
    assert_eq!((test.len(), test.class(0), test.class(1)), (2, 1, 0));
}

#[test]
fn lists_of_slowfast_kinetics_and_others_are_read() {
    let paths = many(|i| format!("videos/clip {i}.gif"), 12);
    let line = |i: usize| format!("videos/clip {i}.gif {}\n", i % 2);
    let slow = |range: std::ops::Range<usize>| range.map(line).collect::<Vec<_>>().concat();
    let (train, val) = (slow(0..10), slow(10..12));
    let root = folder(&texts(&paths), &[("train.csv", &train), ("val.csv", &val), ("classnames.txt", "wave\npoint\n")]);
    assert_eq!(layout_of(&root), "list of clips");
    assert_eq!(clips(&root, Part::Test), ["videos/clip 10.gif wave", "videos/clip 11.gif point"]);
    let heading = "label,youtube_id,time_start,time_end,split\n";
    let kinetics = format!("{heading}wave,abc,1,11,train\npoint,-_-,20,30,train\nwave,xyz,5,15,test\n");
    let paths = ["videos/wave/abc_000001_000011.gif", "train/-_-_000020_000030.gif", "xyz_000005_000015.gif"];
    let root = folder(&paths, &[("clips.csv", &kinetics)]);
    let names: HashSet<String> = clips(&root, Part::TrainAndValidation).into_iter().collect();
    assert_eq!(names.len(), 2);
    assert_eq!(clips(&root, Part::Test), ["xyz_000005_000015.gif wave"]);
    let table = "path,label,part\na.gif,10,train\nb.gif,9,train\nc.gif,10,test\n";
    let root = folder(&["a.gif", "b.gif", "c.gif"], &[("my clips.csv", table)]);
    let path = root.path().join("my clips.csv");
    let dataset = open(path.to_str().unwrap(), Part::All).unwrap();
    assert_eq!(dataset.classes(), ["9", "10"], "numbers are in their order");
}

#[test]
fn what_a_list_names_and_is_not_there_is_an_error_with_its_line() {
    let root = folder(&["a.gif"], &[("train.csv", "a.gif,wave\nb.gif,wave\nc.gif,\n"), ("test.csv", "a.gif,wave\n")]);
    let error = open(source(&root), Part::Train).unwrap_err().to_string();
    assert!(error.contains("train.csv: line 2: no clip `b.gif`, looked into "), "{error}");
    assert!(error.ends_with("(and 1 more; `regard data check` lists them)"), "{error}");
    let survey = survey(source(&root)).unwrap();
    assert!(survey.issues[1].to_string().ends_with("train.csv: line 3: `label` is missing"));
    assert_eq!(survey.train.len() + survey.validation.len(), 1);
}

#[test]
fn parts_depend_on_names_alone() {
    let paths = many(|i| format!("wave/{i}.gif"), 20);
    let one = folder(&texts(&paths), &[]);
    let reversed: Vec<String> = paths.iter().rev().cloned().collect();
    let other = folder(&texts(&reversed), &[]);
    for part in PARTS {
        assert_eq!(clips(&one, part), clips(&other, part));
    }
    assert_ne!(clips(&one, Part::Test).len(), 0);
}

#[test]
fn a_check_finds_what_is_wrong() {
    let mut paths = many(|i| format!("train/wave/{i}.gif"), 4);
    paths.extend(many(|i| format!("train/point/{i}.gif"), 4));
    let root = folder(&texts(&paths), &[]);
    let path = |name: &str| root.path().join(name);
    // the test has the pixels of a training clip, in another format
    let copy = Video::open(&path("train/wave/1.gif")).unwrap().frames(&[0, 1]).unwrap();
    fs::create_dir_all(path("test/wave")).unwrap();
    fs::create_dir_all(path("val/wave")).unwrap();
    fs::write(path("test/wave/copy.apng"), encode_apng(&copy, 10.0).unwrap()).unwrap();
    write_clip(&path("val/wave/long.gif"), 9, [4, 6], 77);
    fs::write(path("train/wave/broken.mp4"), "no video").unwrap();
    crate::testing::write_picture(&path("train/point/frames/1.png"), [4, 6], 0);
    fs::write(path("train/point/frames/2.png"), "no picture").unwrap();
    let ticks = std::sync::atomic::AtomicUsize::new(0);
    let tick = || _ = ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let report = check(&survey(source(&root)).unwrap(), 8, tick);
    assert_eq!(ticks.into_inner(), 12);
    assert_eq!((report.train.clips, report.validation.clips, report.test.clips), (8, 1, 1));
    assert_eq!((report.validation.frames, report.train.longest), (9, 2));
    let [unreadable] = &report.unreadable[..] else { panic!("{:?}", report.unreadable) };
    assert!(unreadable.name.ends_with("broken.mp4") && unreadable.reason.starts_with("not a video"), "{unreadable:?}");
    let [undecodable] = &report.undecodable[..] else { panic!("{:?}", report.undecodable) };
    assert!(
        undecodable.name.ends_with("frames") && undecodable.reason.starts_with("frame 1, 2.png: "),
        "{undecodable:?}"
    );
    assert_eq!(report.short.len(), 9, "all but one have two frames");
    let leak: Vec<String> = report.leaks[0].iter().map(|copy| copy.name.clone()).collect();
    assert!(report.leaks.len() == 1 && leak[0].ends_with("1.gif") && leak[1].ends_with("copy.apng"), "{leak:?}");
    let lacking: Vec<&str> = report.lacking.iter().map(|class| class.name.as_str()).collect();
    assert_eq!(lacking, ["point"]);
    assert_eq!(report.frames.counts[1..4], [9, 0, 1]);
    assert_eq!((report.sizes, report.imbalance), (Some([[4, 6]; 2]), Some(1.0)));
}

#[test]
fn the_embedded_clips_have_nothing_wrong() {
    let parts = |part| -> Arc<dyn ClipDataset> { Arc::new(First(open("clips:4x12", part).unwrap())) };
    let [train, validation, test] = PARTS.map(parts);
    let own = || Origin::Own("its own".into());
    let origins = Origins { validation: own(), test: own() };
    let parts = ClipParts { train, validation, test, layout: "embedded", origins, issues: Vec::new() };
    let report = check(&parts, 4, || {});
    assert_eq!((report.problems(), report.train.clips, report.train.frames), (0, 40, 160));
    assert_eq!((report.rates, report.sizes), (Some([4.0; 2]), Some([[12; 2]; 2])));
}

/// The first forty clips.
#[derive(Debug)]
struct First(Arc<dyn ClipDataset>);

impl ClipDataset for First {
    fn len(&self) -> usize {
        40
    }

    fn classes(&self) -> &[String] {
        self.0.classes()
    }

    fn class(&self, index: usize) -> usize {
        self.0.class(index)
    }

    fn name(&self, index: usize) -> String {
        self.0.name(index)
    }

    fn length(&self, index: usize) -> Result<ClipLength, Error> {
        self.0.length(index)
    }

    fn frames(&self, index: usize, wanted: &[usize]) -> Result<Vec<Picture>, Error> {
        self.0.frames(index, wanted)
    }
}
