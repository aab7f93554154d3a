use super::*;
use crate::data::dataset::Origin;
use crate::random::{Purpose, generator};
use crate::testing::noise_picture;
use rand::RngExt as _;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A folder with pictures of noise and texts.
struct Folder(TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, content) in files {
            folder.write(name, content.as_bytes());
        }
        folder
    }

    /// Pictures of these rows and columns.
    fn with_pictures(self, pictures: &[(&str, [usize; 2])]) -> Self {
        for (place, (name, size)) in pictures.iter().enumerate() {
            let picture = noise_picture(*size, place as u64);
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let (rows, columns) = (size[0] as u32, size[1] as u32);
            image::save_buffer(&path, picture.pixels(), columns, rows, image::ColorType::Rgb8).unwrap();
        }
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn source(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn error(&self, name: &str) -> String {
        let error = open(&self.source(name), Part::All).unwrap_err().to_string();
        error.replace(&self.0.path().display().to_string(), "DIR")
    }
}

fn all(source: &str) -> Arc<dyn DetectionDataset> {
    open(source, Part::All).unwrap()
}

type NamedBox = (String, [f64; 4]);

/// Ids of pictures and, for each box, class and bounds.
fn boxes(dataset: &dyn DetectionDataset) -> Vec<(u64, Vec<NamedBox>)> {
    let of = |index: usize| {
        let annotations = dataset.annotations(index).unwrap();
        let named = annotations.iter().map(|one| (dataset.classes()[one.class].clone(), one.bounds)).collect();
        (dataset.image_id(index), named)
    };
    (0..dataset.len()).map(of).collect()
}

const WILD: &str = r#"{
  "images": [
    {"id": 0, "file_name": "C:\\somebody\\a.png", "width": "40", "height": 30},
    {"id": "900100581904", "file_name": "/home/somebody/data/b.png", "license": 3},
    {"id": 7.0, "file_name": "deep/c.png", "width": 40, "height": 30}
  ],
  "categories": [
    {"id": 0, "name": "cells", "supercategory": "none"},
    {"id": 90, "name": "b cell", "supercategory": "cells"},
    {"id": 3, "name": "a cell", "supercategory": "cells"}
  ],
  "annotations": [
    {"id": 0, "image_id": 0, "category_id": "90", "bbox": ["1", 2.5, 3, 4]},
    {"image_id": 900100581904, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 55.5, "iscrowd": 1, "segmentation": [[1, 2]]},
    {"id": 8, "image_id": 0, "category_id": 3, "bbox": [5, 5, 0, 4], "area": 0, "iscrowd": 0}
  ]
}"#;

#[test]
fn coco_is_read_as_it_is_in_the_wild() {
    let folder = Folder::new(&[("x/boxes.json", WILD)]).with_pictures(&[
        ("x/a.png", [30, 40]),
        ("images/b.png", [30, 40]),
        ("x/deep/c.png", [30, 40]),
    ]);
    let source = folder.source("x/boxes.json");
    let dataset = all(&source);
    assert_eq!(dataset.classes(), ["a cell", "b cell"], "in the order of ids, without the one that groups");
    assert_eq!(
        boxes(&*dataset),
        [
            (0, vec![("b cell".into(), [1.0, 2.5, 3.0, 4.0])]),
            (900_100_581_904, vec![("a cell".into(), [0.0, 0.0, 10.0, 10.0])]),
            (7, vec![])
        ]
    );
    let [first, second] = [0, 1].map(|index| dataset.annotations(index).unwrap()[0]);
    assert_eq!((first.id, first.area, first.crowd), (0, 12.0, false));
    assert_eq!(
        (second.id, second.area, second.crowd),
        (9, 55.5, true),
        "an id that is missing goes on after the largest"
    );
    assert_eq!((dataset.declared_size(0), dataset.declared_size(1)), (Some([30, 40]), None));
    assert_eq!(dataset.sample(2).unwrap().0.size(), [30, 40]);
    let issues: Vec<String> = survey(&source).unwrap().issues.iter().map(|issue| issue.place.clone()).collect();
    assert_eq!(issues, ["category 0", "annotation 8"], "the box without area is left out and reported");
}

#[test]
fn what_is_wrong_with_coco_is_named_with_file_id_and_field() {
    let json = |from: &str, to: &str| WILD.replace(from, to);
    let annotation = "{\"id\": 0, \"image_id\": 0, \"category_id\": \"90\"";
    for (text, expected) in [
        (json("[\"1\", 2.5", "[NaN, 2.5"), "annotation 0: `bbox`: not four finite numbers"),
        (json("[\"1\", 2.5", "[-Infinity, 2.5"), "annotation 0: `bbox`: not four finite numbers"),
        (json("[\"1\", 2.5", "[\"one\", 2.5"), "annotation 0: `bbox`: not four finite numbers"),
        (json("[\"1\", 2.5, 3, 4]", "[1, 2]"), "annotation 0: `bbox` must be four numbers"),
        (
            json(annotation, "{\"id\": 0, \"image_id\": 5, \"category_id\": 90"),
            "annotation 0: `image_id`: there is no image 5",
        ),
        (json(annotation, "{\"id\": 4, \"image_id\": 0"), "annotation 4: `category_id` is missing"),
        (
            json("\"category_id\": \"90\"", "\"category_id\": 91"),
            "annotation 0: `category_id`: there is no category 91",
        ),
        (json("\"name\": \"b cell\", ", ""), "category 90: `name` is missing"),
        (json("\"file_name\": \"deep/c.png\", ", ""), "image 7: `file_name` is missing"),
        (json("deep/c.png", "deep/d.png"), "image 7: `file_name`: no picture `deep/d.png`"),
        (json("\"id\": 7.0", "\"id\": 0"), "image 0: `id` is that of two images"),
        (json("\"id\": 7.0", "\"id\": 7.5"), "image 2 of `images`: `id` must be a whole number, got 7.5"),
        (json("\"categories\": [", "\"categories\": 3, \"x\": ["), "not COCO's JSON"),
        (WILD[..400].to_string(), "not COCO's JSON"),
    ] {
        let folder = Folder::new(&[("boxes.json", &text)]).with_pictures(&[
            ("a.png", [30, 40]),
            ("b.png", [30, 40]),
            ("deep/c.png", [30, 40]),
        ]);
        let error = folder.error("boxes.json");
        assert!(error.starts_with("DIR/boxes.json: ") && error.contains(expected), "{error}\n{expected}");
        // and a survey goes on
        assert_eq!(survey(&folder.source("boxes.json")).is_ok(), !expected.starts_with("not"), "{expected}");
    }
}

#[test]
fn parts_are_those_of_the_files_and_validation_without_a_test_is_the_test() {
    let json = |id: u64, name: &str, category: u64| {
        format!(
            r#"{{"images": [{{"id": {id}, "file_name": "{name}"}}], "categories": [{{"id": {category}, "name": "cat"}}, {{"id": 5, "name": "dog"}}],
            "annotations": [{{"id": 1, "image_id": {id}, "category_id": {category}, "bbox": [1, 1, 5, 5]}}]}}"#
        )
    };
    // other ids of the same classes
    let files = [
        ("annotations/instances_train2017.json", json(1, "a.png", 9)),
        ("annotations/captions_train2017.json", json(1, "a.png", 9)),
        ("annotations/instances_val2017.json", json(1, "b.png", 2)),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let folder = Folder::new(&files).with_pictures(&[("train2017/a.png", [9, 9]), ("images/val2017/b.png", [9, 9])]);
    let parts = open_parts(&folder.source("")).unwrap();
    assert_eq!((parts.train.len(), parts.validation.len(), parts.test.len()), (1, 0, 1));
    assert_eq!(parts.layout, "COCO");
    assert_eq!(parts.origins.test, Origin::Own("instances_val2017.json".into()));
    assert!(parts.test.name(0).ends_with("b.png"));
    let [train, test] = [&parts.train, &parts.test].map(|part| boxes(&**part)[0].1[0].0.clone());
    assert_eq!((train.as_str(), test.as_str()), ("cat", "cat"), "classes are joined by name");
    let both = open(&folder.source(""), Part::All).unwrap();
    assert_eq!([0, 1].map(|index| both.image_id(index)), [1, 2], "ids of two files are made unique");
    // Roboflow's way
    let files = [("train", "a.png"), ("valid", "b.png"), ("test", "c.png")]
        .map(|(part, name)| (format!("{part}/_annotations.coco.json"), json(3, name, 1), format!("{part}/{name}")));
    let texts: Vec<(&str, &str)> = files.iter().map(|(name, text, _)| (name.as_str(), text.as_str())).collect();
    let pictures: Vec<(&str, [usize; 2])> = files.iter().map(|(_, _, picture)| (picture.as_str(), [8, 8])).collect();
    let parts = open_parts(&Folder::new(&texts).with_pictures(&pictures).source("")).unwrap();
    assert_eq!((parts.train.len(), parts.validation.len(), parts.test.len()), (1, 1, 1));
}

#[test]
fn data_without_parts_has_the_same_fifth_and_tenth_everywhere() {
    let rows: Vec<String> = (0..50).map(|number| format!("{number}.png,1,1,5,5,cat\n")).collect();
    let rows = rows.concat();
    let names: Vec<String> = (0..50).map(|number| format!("{number}.png")).collect();
    let pictures: Vec<(&str, [usize; 2])> = names.iter().map(|name| (name.as_str(), [6, 6])).collect();
    let sets = [0, 1].map(|_| {
        let folder = Folder::new(&[("set/boxes.csv", &rows)]);
        let named: Vec<(String, [usize; 2])> =
            pictures.iter().map(|(name, size)| (format!("set/{name}"), *size)).collect();
        let named: Vec<(&str, [usize; 2])> = named.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        let folder = folder.with_pictures(&named);
        let parts = open_parts(&folder.source("set")).unwrap();
        assert_eq!((parts.train.len(), parts.validation.len(), parts.test.len()), (36, 4, 10));
        assert_eq!(parts.origins.test, Origin::FifthOfPictures);
        let names = |part: &dyn DetectionDataset| {
            (0..part.len()).map(|index| part.name(index).rsplit('/').next().unwrap().to_string()).collect::<Vec<_>>()
        };
        [names(&*parts.train), names(&*parts.validation), names(&*parts.test)]
    });
    assert_eq!(sets[0], sets[1], "wherever the folder is");
}

const XML: &str = "<annotation><folder>x</folder><filename>another.jpg</filename><size><width>40</width><height>30</height></size>\
<object><name>salt &amp; pepper</name><difficult>1</difficult><bndbox><xmin>1</xmin><ymin>11</ymin><xmax>20.5</xmax><ymax>30</ymax></bndbox>\
<part><name>head</name><bndbox><xmin>2</xmin><ymin>2</ymin><xmax>3</xmax><ymax>3</ymax></bndbox></part></object>\
<object><name>cup</name><bndbox><ymax>5</ymax><xmin>5</xmin><ymin>5</ymin><xmax>5</xmax></bndbox></object></annotation>";

#[test]
fn voc_counts_from_one_and_knows_pictures_by_the_name_of_the_xml() {
    let folder = Folder::new(&[
        ("Annotations/p.xml", XML),
        ("Annotations/q.xml", "<annotation><filename>q.png</filename></annotation>"),
        ("ImageSets/Main/train.txt", "p  1\n"),
        ("ImageSets/Main/test.txt", "q -1\n"),
    ])
    .with_pictures(&[("JPEGImages/p.png", [30, 40]), ("JPEGImages/q.png", [3, 4])]);
    let parts = open_parts(&folder.source("")).unwrap();
    assert_eq!((parts.layout, parts.train.len(), parts.test.len()), ("VOC", 1, 1));
    assert_eq!(boxes(&*parts.train)[0].1, [("salt & pepper".to_string(), [0.0, 10.0, 20.5, 20.0])]);
    let annotation = parts.train.annotations(0).unwrap()[0];
    assert_eq!((annotation.difficult, annotation.area), (true, 410.0));
    assert!(parts.train.sample(0).unwrap().0.size() == [30, 40] && parts.test.declared_size(0).is_none());
    let issues: Vec<String> = parts.issues.iter().map(|issue| issue.reason.clone()).collect();
    assert_eq!(issues.len(), 1);
    assert!(issues[0].contains("without area"), "{issues:?}");
}

#[test]
fn what_is_wrong_with_voc_is_named() {
    for (text, expected) in [
        (XML.replace("<xmin>1<", "<xmin>one<"), "p.xml: object 1: `xmin` must be a number, got `one`"),
        (XML.replace("<ymin>11</ymin>", ""), "p.xml: object 1: `ymin` must be a number, got `missing`"),
        (XML.replace("<xmin>1<", "<xmin>NaN<"), "p.xml: object 1: `bndbox`: not four finite numbers"),
        (XML.replace("<name>cup</name>", ""), "p.xml: object 2: `name` is missing"),
        (XML[..300].to_string(), "p.xml: the file: "),
        (XML.replace("annotation>", "html>"), "p.xml: the file: no element `annotation`"),
        ("<a>".repeat(100_000), "p.xml: the file: more than 64 elements in each other"),
    ] {
        let folder = Folder::new(&[("p.xml", &text)]).with_pictures(&[("p.png", [30, 40])]);
        let error = folder.error("");
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let folder = Folder::new(&[("p.xml", XML)]);
    assert!(
        folder.error("").contains("p.xml: annotation: `filename`: no picture `another.jpg`"),
        "{}",
        folder.error("")
    );
}

#[test]
fn yolo_has_boxes_polygons_and_pictures_without_objects() {
    let folder = Folder::new(&[
        ("data.yaml", "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['a', 'b']\n"),
        ("train/labels/p.txt", "1 0.5 0.5 0.5 0.2\n0 0 0 0.5 0 0.5 1\n\n"),
        ("train/labels/q.txt", ""),
    ])
    .with_pictures(&[
        ("train/images/p.png", [30, 40]),
        ("train/images/q.png", [30, 40]),
        ("valid/images/r.png", [30, 40]),
    ]);
    let parts = open_parts(&folder.source("")).unwrap();
    assert_eq!((parts.layout, parts.test.len()), ("YOLO", 1));
    let dataset = all(&folder.source("data.yaml"));
    let found = boxes(&*dataset);
    assert_eq!(found[0].1, [("b".into(), [10.0, 12.0, 20.0, 6.0]), ("a".into(), [0.0, 0.0, 20.0, 30.0])]);
    assert_eq!(dataset.sample(0).unwrap().1, dataset.annotations(0).unwrap());
    assert!(found[1].1.is_empty() && found[2].1.is_empty());
    for (line, expected) in [
        ("2 0.5 0.5 0.1 0.1", "class 2 has no name, of 2 names"),
        ("0 0.5 0.5 0.1", "line 1: must be `class cx cy w h` or a polygon, got 4 numbers"),
        ("cat 0.5 0.5 0.1 0.1", "line 1: `class` must be a whole number below 100000, got `cat`"),
        ("0 0.5 0.5 0.1 x", "line 1: must be a number, got `x`"),
        ("0 nan 0.5 0.1 0.1", "line 1: `cx cy w h`: not four finite numbers"),
        ("0 320 240 100 100", "line 1: must be shares of the picture, got `0 320 240 100 100`"),
    ] {
        folder.write("train/labels/q.txt", line.as_bytes());
        let error = folder.error("");
        assert!(error.starts_with("DIR/train/labels/q.txt: ") && error.contains(expected), "{error}\n{expected}");
    }
}

#[test]
fn a_table_of_boxes_has_a_heading_or_none() {
    let pictures = [("p.png", [30, 40]), ("images/q.png", [30, 40])];
    let tables = [
        "p.png,1,2,11,22,b\nq.png,,,,,\np.png,0,0,5,5,a\n",
        "filename,width,height,class,xmin,ymin,xmax,ymax\np.png,40,30,b,1,2,11,22\nq.png,40,30,,,,,\np.png,40,30,a,0,0,5,5\n",
        "image,x1,y1,x2,y2,class\np.png,1,2,11,22,b\nq.png,,,,,\np.png,0,0,5,5,a\n",
    ];
    for table in tables {
        let folder = Folder::new(&[("boxes.csv", table)]).with_pictures(&pictures);
        let dataset = all(&folder.source(""));
        assert_eq!(dataset.classes(), ["a", "b"]);
        let expected = vec![("b".to_string(), [1.0, 2.0, 10.0, 20.0]), ("a".to_string(), [0.0, 0.0, 5.0, 5.0])];
        assert_eq!(boxes(&*dataset), [(1, expected), (2, vec![])]);
        folder.write("classes.csv", b"b,0\na,1\n");
        assert_eq!(all(&folder.source("boxes.csv")).classes(), ["b", "a"]);
    }
    for (table, expected) in [
        ("image,x1,y1,x2,y2,class\np.png,1,2,x,22,b\n", "line 2: `x2` must be a number, got `x`"),
        ("image,x1,y1,x2,y2,class\np.png,1,2,3,22,\n", "line 2: `class` is missing"),
        (
            "image,x1,y1,x2,y2,class,part\np.png,1,2,3,22,a,some\n",
            "line 2: `part` must be train, validation or test, got `some`",
        ),
        ("p.png,1,2,3,4,a\nz.png,1,2,3,4,a\n", "line 2: `image`: no picture `z.png`"),
    ] {
        let error = Folder::new(&[("boxes.csv", table)]).with_pictures(&pictures).error("");
        assert!(error.contains(expected), "{error}");
    }
    // a table of classes is none of boxes
    let folder = Folder::new(&[("labels.csv", "file,label\np.png,a\n")]).with_pictures(&pictures);
    assert!(!is_detection(&folder.source("")));
}

/// A dataset with everything that formats treat differently.
fn rich() -> Folder {
    let part = |start: u64, names: [&str; 2]| {
        format!(
            r#"{{"images": [{{"id": {start}, "file_name": "{}", "width": 40, "height": 30}}, {{"id": {}, "file_name": "{}", "width": 37, "height": 21}}],
            "categories": [{{"id": 1, "name": "zebra's \"foal\""}}, {{"id": 2, "name": "ant, red"}}, {{"id": 3, "name": "never <seen>"}}],
            "annotations": [
              {{"id": 11, "image_id": {start}, "category_id": 1, "bbox": [0.125, 3.7, 10.3, 11.9], "area": 50.25, "iscrowd": 0}},
              {{"id": 12, "image_id": {start}, "category_id": 2, "bbox": [20, 10, 15, 20], "iscrowd": 1}},
              {{"id": 17, "image_id": {start}, "category_id": 2, "bbox": [0, 0, 40, 30], "difficult": 1}}]}}"#,
            names[0],
            start + 7,
            names[1]
        )
    };
    let files = [("train", ["a.png", "b.png"]), ("val", ["a.png", "c.png"]), ("test", ["d.png", "e.jpeg"])];
    let texts: Vec<(String, String)> =
        files.map(|(name, names)| (format!("annotations/instances_{name}.json"), part(5, names))).to_vec();
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let pictures: Vec<(String, [usize; 2])> = files
        .iter()
        .flat_map(|(part, names)| {
            [(format!("{part}/{}", names[0]), [30, 40]), (format!("{part}/{}", names[1]), [21, 37])]
        })
        .collect();
    let pictures: Vec<(&str, [usize; 2])> = pictures.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    Folder::new(&texts).with_pictures(&pictures)
}

/// For each part, the pixels of each picture and class, box, area, crowd and difficult of its objects.
type Content = Vec<(Vec<u8>, Vec<(String, [f64; 4], f64, bool, bool)>)>;

fn content(parts: &DetectionParts) -> Vec<Content> {
    let of = |dataset: &Arc<dyn DetectionDataset>| {
        let mut all: Content = (0..dataset.len())
            .map(|index| {
                let (picture, annotations) = dataset.sample(index).unwrap();
                let one = |one: &Annotation| {
                    (dataset.classes()[one.class].clone(), one.bounds, one.area, one.crowd, one.difficult)
                };
                (picture.pixels().to_vec(), annotations.iter().map(one).collect())
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    [&parts.train, &parts.validation, &parts.test].map(of).to_vec()
}

/// JSON, sums and fractions cause small rounding errors.
#[track_caller]
fn assert_same(before: &DetectionParts, after: &DetectionParts, with_marks: bool) {
    for (before, after) in content(before).iter().zip(content(after)) {
        assert_eq!(before.len(), after.len());
        for ((pixels, before), (other_pixels, after)) in before.iter().zip(&after) {
            assert!(pixels == other_pixels && before.len() == after.len());
            for (before, after) in before.iter().zip(after) {
                assert_eq!(before.0, after.0);
                let distance = before.1.iter().zip(after.1).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(distance < 1e-9, "{:?} {:?}", before.1, after.1);
                if with_marks {
                    assert!((before.2 - after.2).abs() < 1e-9, "{before:?} {after:?}");
                    assert_eq!((before.3, before.4), (after.3, after.4));
                }
            }
        }
    }
}

#[test]
fn every_format_leads_back_to_the_same_pictures_and_boxes() {
    let folder = rich();
    let first = open_parts(&folder.source("")).unwrap();
    for chain in [
        vec![AnnotationFormat::Voc, AnnotationFormat::Coco],
        vec![AnnotationFormat::Csv, AnnotationFormat::Coco],
        vec![AnnotationFormat::Coco, AnnotationFormat::Csv, AnnotationFormat::Voc, AnnotationFormat::Coco],
        vec![AnnotationFormat::Yolo, AnnotationFormat::Coco],
        vec![AnnotationFormat::Yolo, AnnotationFormat::Csv, AnnotationFormat::Yolo],
    ] {
        let output = tempfile::tempdir().unwrap();
        let mut parts = first.clone();
        for (step, format) in chain.iter().enumerate() {
            let target = output.path().join(step.to_string());
            let written = convert(&parts, *format, &target, || {}).unwrap();
            assert_eq!((written.pictures, written.boxes), (6, 9));
            parts = open_parts(&target.display().to_string()).unwrap();
            assert!(parts.issues.is_empty(), "{format:?}: {:?}", parts.issues);
        }
        assert_eq!(parts.train.classes(), first.train.classes(), "{chain:?}");
        assert_same(&first, &parts, !chain.contains(&AnnotationFormat::Yolo));
    }
}

#[test]
fn what_a_format_cannot_hold_is_told_and_a_full_folder_is_refused() {
    let folder = rich();
    let parts = open_parts(&folder.source("")).unwrap();
    let output = tempfile::tempdir().unwrap();
    let lost =
        |format: AnnotationFormat, name: &str| convert(&parts, format, &output.path().join(name), || {}).unwrap().lost;
    assert!(lost(AnnotationFormat::Coco, "coco").is_empty());
    assert_eq!(lost(AnnotationFormat::Voc, "voc"), ["6 ids of pictures (numbered anew)"]);
    let texts = lost(AnnotationFormat::Yolo, "yolo");
    assert_eq!(texts.len(), 4);
    assert!(texts[1].starts_with("3 areas") && texts[2].starts_with("3 marks of crowds"), "{texts:?}");
    let error = convert(&parts, AnnotationFormat::Csv, &output.path().join("voc"), || {}).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
}

/// The first pictures of a dataset.
#[derive(Debug)]
struct First(Arc<dyn DetectionDataset>);
impl DetectionDataset for First {
    fn len(&self) -> usize {
        5
    }
    fn classes(&self) -> &[String] {
        self.0.classes()
    }
    fn picture(&self, index: usize) -> Result<Picture, Error> {
        self.0.picture(index)
    }
    fn annotations(&self, index: usize) -> Result<Vec<Annotation>, Error> {
        self.0.annotations(index)
    }
    fn image_id(&self, index: usize) -> u64 {
        self.0.image_id(index)
    }
    fn name(&self, index: usize) -> String {
        self.0.name(index)
    }
    fn declared_size(&self, index: usize) -> Option<[usize; 2]> {
        self.0.declared_size(index)
    }
}

#[test]
fn scenes_are_converted_and_come_back() {
    let mut parts = open_parts("scenes").unwrap();
    assert_eq!((parts.train.len(), parts.validation.len(), parts.test.len()), (20_000, 1000, 2000));
    for part in [&mut parts.train, &mut parts.validation, &mut parts.test] {
        *part = Arc::new(First(part.clone()));
    }
    let output = tempfile::tempdir().unwrap();
    convert(&parts, AnnotationFormat::Coco, &output.path().join("out"), || {}).unwrap();
    let back = open_parts(&output.path().join("out").display().to_string()).unwrap();
    assert_same(&back, &parts, true);
}

/// A JPEG of 2 x 3 pixels that is shown turned by 90 degrees.
fn turned_jpeg() -> Vec<u8> {
    let mut bytes = Vec::new();
    let picture = noise_picture([2, 3], 1);
    image::codecs::jpeg::JpegEncoder::new(&mut bytes)
        .encode(picture.pixels(), 3, 2, image::ExtendedColorType::Rgb8)
        .unwrap();
    // an APP1 segment with one entry: tag 0x0112, a short, once, 6
    let exif = b"\xff\xe1\x00\x22Exif\0\0MM\x00\x2a\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00";
    let mut turned = bytes[..2].to_vec();
    turned.extend_from_slice(exif);
    turned.extend_from_slice(&bytes[2..]);
    turned
}

#[test]
fn a_turned_picture_is_upright_unless_the_annotations_fit_the_stored_one() {
    let json = |size: &str| {
        format!(r#"{{"images": [{{"id": 1, "file_name": "t.jpg"{size}}}], "annotations": [], "categories": []}}"#)
    };
    let folder = Folder::new(&[]);
    folder.write("t.jpg", &turned_jpeg());
    assert_eq!(orientation(&folder.path("t.jpg")).unwrap(), Orientation { stored: [2, 3], tag: 6 });
    for (size, expected, exif) in [
        (r#", "width": 2, "height": 3"#, [3, 2], [1, 0, 0]),
        (r#", "width": 3, "height": 2"#, [2, 3], [0, 1, 0]),
        ("", [3, 2], [0, 0, 1]),
        (r#", "width": 30, "height": 20"#, [3, 2], [0, 0, 1]),
    ] {
        folder.write("boxes.json", json(size).as_bytes());
        let source = folder.source("boxes.json");
        assert_eq!(all(&source).picture(0).unwrap().size(), expected, "{size}");
        let report = check(&survey(&source).unwrap(), || {});
        assert_eq!([report.exif.fits_upright, report.exif.fits_stored, report.exif.undecided], exif, "{size}");
        assert_eq!(report.exif.turned, 1);
        assert_eq!(report.other_sizes.len(), usize::from(size.contains("30")));
    }
}

#[test]
fn a_check_finds_boxes_that_are_outside_over_the_border_or_there_twice() {
    let rows = "p.png,50,1,60,9,a\np.png,-5,1,9,9,a\np.png,1,1,9,9,a\np.png,1,1,9,9,a\np.png,1,1,9,9,b\np.png,0,0,40.5,30.9,a\n";
    let folder = Folder::new(&[("boxes.csv", rows)]).with_pictures(&[("p.png", [30, 40])]);
    let report = check(&survey(&folder.source("")).unwrap(), || {});
    let kinds: Vec<(FaultKind, u64)> = report.faults.iter().map(|fault| (fault.kind, fault.annotation)).collect();
    assert_eq!(kinds, [(FaultKind::Outside, 1), (FaultKind::OverBorder, 2), (FaultKind::Duplicate, 4)]);
    assert_eq!((report.most_objects(), report.train.objects, report.problems()), (6, 6, 3));
    // shorter sides 8, 8, 8, 8, 8 and 30.9
    assert_eq!(report.below_stride, [0, 5, 6]);
}

#[test]
fn corners_in_place_of_sides_are_noticed_and_right_boxes_are_not() {
    let mut random = generator(1, Purpose::Augment, [0, 0]);
    let corners: Vec<[f64; 4]> = (0..60)
        .map(|_| {
            let (x, y) = (random.random_range(0.0..80.0), random.random_range(0.0..80.0));
            [x, y, random.random_range(x + 3.0..100.0), random.random_range(y + 3.0..100.0)]
        })
        .collect();
    let report = |boxes: Vec<[f64; 4]>| {
        let annotations: Vec<String> = boxes
            .iter()
            .enumerate()
            .map(|(id, bounds)| format!(r#"{{"id": {id}, "image_id": 1, "category_id": 1, "bbox": {bounds:?}}}"#))
            .collect();
        let text = format!(
            r#"{{"images": [{{"id": 1, "file_name": "p.png"}}], "categories": [{{"id": 1, "name": "a"}}], "annotations": [{}]}}"#,
            annotations.join(",")
        );
        let folder = Folder::new(&[("boxes.json", &text)]).with_pictures(&[("p.png", [100, 100])]);
        check(&survey(&folder.source("boxes.json")).unwrap(), || {})
    };
    assert!(report(corners.clone()).looks_like_corners);
    let sides = corners.iter().map(|[x1, y1, x2, y2]| [*x1, *y1, x2 - x1, y2 - y1]).collect();
    let right = report(sides);
    assert!(!right.looks_like_corners && right.problems() == 0, "{:?}", right.faults);
}

#[test]
fn leaks_broken_pictures_and_classes_of_one_part_are_told() {
    let rows = "image,x1,y1,x2,y2,class,part\na.png,1,1,5,5,cat,train\nb.png,1,1,5,5,cat,test\nc.png,1,1,5,5,dog,train\n\
                d.png,,,,,,test\ne.png,1,1,5,5,cat,val\ne.png,1,1,6,6,dog,val\n";
    let folder = Folder::new(&[("boxes.csv", rows), ("d.png", "a text")]).with_pictures(&[
        ("a.png", [8, 8]),
        ("c.png", [8, 8]),
        ("e.png", [8, 8]),
    ]);
    fs::copy(folder.path("a.png"), folder.path("b.png")).unwrap();
    let ticks = std::sync::atomic::AtomicUsize::new(0);
    let tick = || _ = ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let report = check(&survey(&folder.source("")).unwrap(), tick);
    assert_eq!((report.leaks.len(), report.unreadable.len(), ticks.into_inner()), (1, 1, 5));
    assert_eq!(report.in_one_part.iter().map(|count| count.name.as_str()).collect::<Vec<_>>(), ["dog"]);
    let error = open(&folder.source(""), Part::Test).unwrap().sample(1).unwrap_err().to_string();
    assert!(error.ends_with("d.png: not a JPEG, PNG, WebP, GIF or BMP picture"), "{error}");
}

#[test]
fn ten_thousand_objects_and_a_picture_of_one_pixel_are_data_too() {
    let rows: Vec<String> = (0..10_000).map(|number| format!("p.png,0,0,1,{},a\n", 1 + number)).collect();
    let rows = rows.concat();
    let folder = Folder::new(&[("boxes.csv", &rows)]).with_pictures(&[("p.png", [1, 1])]);
    let dataset = all(&folder.source(""));
    assert_eq!((dataset.annotations(0).unwrap().len(), dataset.sample(0).unwrap().0.size()), (10_000, [1, 1]));
}

#[test]
fn a_file_with_any_byte_changed_is_data_or_an_error() {
    let pictures = [("a.png", [3, 4]), ("b.png", [3, 4]), ("deep/c.png", [3, 4]), ("p.png", [3, 4])];
    let texts = [("x.json", WILD), ("p.xml", XML), ("boxes.csv", "image,x1,y1,x2,y2,class\np.png,1,1,2,2,b\n")];
    for (name, text) in texts {
        let folder = Folder::new(&[]).with_pictures(&pictures);
        let mut random = generator(4, Purpose::Augment, [0, 0]);
        for _ in 0..300 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..random.random_range(1..4) {
                let place = random.random_range(0..bytes.len());
                match random.random_range(0..3) {
                    0 => bytes[place] = random.random(),
                    1 => bytes.truncate(place.max(1)),
                    _ => bytes.insert(place, b"\"{}[],<>&-0e9\xff"[random.random_range(0..14)]),
                }
            }
            folder.write(name, &bytes);
            if let Ok(parts) = survey(&folder.source("")) {
                _ = check(&parts, || {});
            }
        }
    }
}

#[test]
fn what_is_no_data_lists_the_formats_that_are() {
    let folder = Folder::new(&[("readme.txt", "hello"), ("list.json", "[1, 2]")]);
    let error = folder.error("");
    assert!(["COCO", "VOC", "YOLO", "CSV", "scenes"].iter().all(|name| error.contains(name)), "{error}");
    assert!(folder.error("nowhere").contains("No such file"));
}
