use super::*;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

/// A grey picture in a file.
fn draw(path: &Path, level: u8) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::from_pixel(8, 6, image::Rgb([level; 3])).save(path).unwrap();
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn opened(path: &Path) -> VisionLanguageParts {
    open_parts(&path.display().to_string(), PictureUse::Needed).unwrap()
}

fn refused(path: &Path) -> String {
    open_parts(&path.display().to_string(), PictureUse::Needed).unwrap_err().to_string()
}

fn texts(dataset: &Arc<dyn VisionLanguageDataset>) -> Vec<(String, String)> {
    let one = |index| {
        let sample = dataset.sample(index).unwrap();
        (sample.text, sample.answers.first().map(|(answer, _)| answer.clone()).unwrap_or_default())
    };
    (0..dataset.len()).map(one).collect()
}

#[test]
fn vqa_has_soft_scores_of_what_ten_people_said() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (part, first) in [("train", 1), ("val", 3)] {
        let questions: Vec<String> = (first..first + 2)
            .map(|id| format!(r#"{{"image_id": {id}, "question": "what is it?", "question_id": {}}}"#, 10 * id))
            .collect();
        let questions = format!(r#"{{"data_subtype": "{part}2014", "questions": [{}]}}"#, questions.join(","));
        write(&root.join(format!("v2_OpenEnded_mscoco_{part}2014_questions.json")), &questions);
        let people: Vec<String> = (0..10)
            .map(|person| {
                format!(r#"{{"answer": "{}", "answer_id": {person}}}"#, if person < 3 { "A dog." } else { "cat" })
            })
            .collect();
        let answers: Vec<String> = (first..first + 2)
            .map(|id| {
                format!(
                    r#"{{"question_id": {}, "image_id": {id}, "question_type": "what is", "answer_type": "other",
                        "multiple_choice_answer": "cat", "answers": [{}]}}"#,
                    10 * id,
                    people.join(",")
                )
            })
            .collect();
        let answers = format!(r#"{{"info": {{}}, "annotations": [{}]}}"#, answers.join(","));
        write(&root.join(format!("v2_mscoco_{part}2014_annotations.json")), &answers);
        for id in first..first + 2 {
            draw(&root.join(format!("{part}2014/COCO_{part}2014_{id:012}.png")), 10 * id as u8);
        }
    }
    let parts = opened(root);
    assert_eq!((parts.layout, parts.test.len()), ("VQA", 2));
    assert_eq!(parts.train.len() + parts.validation.len(), 2);
    let sample = parts.test.sample(0).unwrap();
    assert_eq!(sample.answers.len(), 2);
    assert!(sample.answers[0] == ("cat".into(), 1.0) && sample.answers[1].0 == "dog");
    assert!((sample.answers[1].1 - 0.9).abs() < 1e-6);
    assert_eq!((parts.test.groups(), sample.group), (&["what is".to_string()][..], Some(0)));
    assert!(parts.test.picture_name(0, 0).ends_with("COCO_val2014_000000000003.png"));
    assert_eq!(parts.test.picture(0, 0).unwrap().pixels()[0], 30);
    fs::remove_file(root.join("val2014/COCO_val2014_000000000003.png")).unwrap();
    let told = refused(root);
    assert!(told.contains("questions.json: question 30: `image_id`: no picture `3`"), "{told}");
    // features may be elsewhere
    assert!(open_parts(&root.display().to_string(), PictureUse::NotNeeded).is_ok());
    assert!(!crate::data::detection::is_detection(&root.display().to_string()));
}

#[test]
fn captions_of_coco_and_of_karpathys_split_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let text = r#"{"images": [{"id": 5, "file_name": "a.png"}, {"id": 6, "file_name": "b.png"}],
        "annotations": [{"image_id": 5, "id": 1, "caption": "a cat "}, {"image_id": 6, "id": 2, "caption": "a dog"},
        {"image_id": 6, "id": 3, "caption": " "}]}"#;
    write(&root.join("one/annotations/captions_val2017.json"), text);
    draw(&root.join("one/val2017/a.png"), 1);
    draw(&root.join("one/val2017/b.png"), 2);
    let all = open(&root.join("one").display().to_string(), Part::All, PictureUse::Needed).unwrap();
    let told: Vec<String> = texts(&all).into_iter().map(|(text, _)| text).collect();
    assert_eq!((told, all.kind()), (vec!["a cat".to_string(), "a dog".into()], TextKind::Captions));
    let issues = opened(&root.join("one")).issues;
    assert!(issues.len() == 1 && issues[0].to_string().ends_with("annotation 3: `caption`: an empty text is left out"));
    assert!(!crate::data::detection::is_detection(&root.join("one").display().to_string()));

    let image = |name: &str, split: &str| {
        format!(
            r#"{{"filepath": "val2014", "filename": "{name}", "split": "{split}", "sentences": [{{"raw": "{split}"}}]}}"#
        )
    };
    let images = [image("a.png", "train"), image("b.png", "restval"), image("c.png", "val"), image("d.png", "test")];
    write(&root.join("two/dataset_coco.json"), &format!(r#"{{"images": [{}]}}"#, images.join(",")));
    for (level, name) in ["a", "b", "c", "d"].iter().enumerate() {
        draw(&root.join(format!("two/val2014/{name}.png")), level as u8);
    }
    let parts = opened(&root.join("two"));
    assert_eq!([parts.train.len(), parts.validation.len(), parts.test.len()], [2, 1, 1]);
}

#[test]
fn easy_vqa_keeps_questions_of_a_picture_together_and_names_broken_ones() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("train");
    let rows: Vec<String> =
        (0..60).map(|i| format!(r#"["what {}?", "{}", {}]"#, i % 3, ["yes", "red"][i % 2], i / 3)).collect();
    write(&root.join("questions.json"), &format!("[{}]", rows.join(",")));
    (0..20).for_each(|image| draw(&root.join(format!("images/{image}.png")), image));
    let parts = opened(folder.path());
    let sizes = [parts.train.len(), parts.validation.len(), parts.test.len()];
    assert!(
        sizes.iter().sum::<usize>() == 60 && sizes.iter().all(|count| *count > 0 && count.is_multiple_of(3)),
        "{sizes:?}"
    );
    let pictures = [&parts.train, &parts.validation, &parts.test]
        .map(|part| (0..part.len()).map(|index| part.picture_name(index, 0)).collect::<HashSet<_>>());
    assert!(pictures[0].is_disjoint(&pictures[1]) && pictures[0].is_disjoint(&pictures[2]));
    assert_eq!(parts.train.answer_types(), ["yes/no", "other"]);
    write(&root.join("questions.json"), r#"[["what?", "red", 99]]"#);
    assert!(refused(&root).contains("question 0: `image`: no picture `99`"), "{}", refused(&root));
    write(&root.join("questions.json"), r#"[["what?", "red"]]"#);
    assert!(refused(&root).contains("not a list of [question, answer, image]"));
}

#[test]
fn nlvr_finds_the_boxes_of_every_permutation() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let shape = |x: usize, colour: &str| {
        format!(r#"{{"x_loc": {x}, "y_loc": 80, "size": 20, "type": "square", "color": "{colour}"}}"#)
    };
    let rep = format!(
        "[[{}], [{}], [{}, {}]]",
        shape(10, "Yellow"),
        shape(10, "Black"),
        shape(10, "#0099ff"),
        shape(60, "Black")
    );
    let first = format!(
        r#"{{"image": "a-0.png", "sentence": "one", "label": true, "identifier": "1-0", "structured_rep": {rep}}}"#
    );
    let second = r#"{"image": "a-1.png", "sentence": "one", "label": "True", "identifier": "1-0"}"#;
    write(&root.join("train.json"), &[&first, second].join("\n"));
    let order = [[0, 1, 2], [2, 0, 1]];
    for (number, order) in order.iter().enumerate() {
        let mut picture = image::RgbImage::from_pixel(400, 100, image::Rgb([211; 3]));
        let mut square = |x: usize, colour: [u8; 3]| {
            for y in 80..100 {
                (x..x + 20).for_each(|x| picture.put_pixel(x as u32, y, image::Rgb(colour)));
            }
        };
        for (place, own) in order.iter().enumerate() {
            square(150 * place + 10, [[255, 255, 0], [0, 0, 0], [0, 153, 255]][*own]);
            if *own == 2 {
                square(150 * place + 60, [0; 3]);
            }
        }
        fs::create_dir_all(root.join("images")).unwrap();
        picture.save(root.join(format!("images/a-{number}.png"))).unwrap();
    }
    let all = open(&root.display().to_string(), Part::All, PictureUse::Needed).unwrap();
    assert_eq!(texts(&all), vec![("one".to_string(), "true".to_string()); 2]);
    for (index, order) in order.iter().enumerate() {
        let boxes = all.boxes(index, 0, &all.picture(index, 0).unwrap()).unwrap();
        let names: Vec<&str> = boxes.iter().map(|given| all.box_classes()[given.class.unwrap()].as_str()).collect();
        let expected: Vec<&str> = order
            .iter()
            .flat_map(|own| [&["yellow square"][..], &["black square"], &["blue square", "black square"]][*own])
            .copied()
            .collect();
        assert_eq!(names, expected);
        let left = boxes[0].bounds.pixel_corners([100, 400]);
        assert_eq!(left.map(f64::round), [10.0, 80.0, 30.0, 100.0]);
    }
    // both pictures of a statement are in one part
    let parts = opened(root);
    assert!([parts.train.len(), parts.validation.len(), parts.test.len()].contains(&2));
    write(&root.join("train.json"), r#"{"sentence": "x", "label": "perhaps", "identifier": "1"}"#);
    assert!(
        refused(root).contains("no text about a picture") || refused(root).contains("`label` must be true or false")
    );
}

#[test]
fn nlvr2_is_about_two_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(
        &root.join("dev.json"),
        r#"{"sentence": "two dogs", "label": "False", "identifier": "dev-850-0-0", "left_url": "x"}"#,
    );
    draw(&root.join("dev-850-0-img0.png"), 3);
    draw(&root.join("dev-850-0-img1.png"), 4);
    let all = open(&root.display().to_string(), Part::All, PictureUse::Needed).unwrap();
    assert_eq!((all.pictures(), texts(&all)), (2, vec![("two dogs".to_string(), "false".to_string())]));
    assert_eq!([0, 1].map(|which| all.picture(0, which).unwrap().pixels()[0]), [3, 4]);
}

#[test]
fn tables_of_csv_and_json_lines_are_captions_or_questions() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    draw(&root.join("a.png"), 1);
    draw(&root.join("images/b.png"), 2);
    write(&root.join("captions.csv"), "image,text,part\na.png,\"a cat, asleep\",train\nb.png,a dog,test\n");
    let parts = opened(&root.join("captions.csv"));
    assert_eq!((texts(&parts.test)[0].0.as_str(), parts.train.kind()), ("a dog", TextKind::Captions));
    let lines = [
        r#"{"image": "a.png", "question": "what?", "answers": ["cat", "cat", "dog"]}"#,
        r#"{"image": "b.png", "question": "how many?", "answers": ["2"]}"#,
    ];
    write(&root.join("questions.jsonl"), &lines.join("\n"));
    let all = open(&root.join("questions.jsonl").display().to_string(), Part::All, PictureUse::Needed).unwrap();
    let sample = all.sample(0).unwrap();
    assert_eq!((sample.answers[0].0.as_str(), sample.answers.len(), all.kind()), ("cat", 2, TextKind::Questions));
    write(&root.join("bad.csv"), "image,question,answer\na.png,what?,\n,what?,x\nc.png,what?,x\na.png,,x\n");
    let survey = survey(&root.join("bad.csv").display().to_string()).unwrap();
    let told: Vec<String> = survey.issues.iter().chain(&survey.missing).map(ToString::to_string).collect();
    for expected in [
        "line 2: `answer` is missing",
        "line 3: `image` is missing",
        "line 5: `question`: an empty text",
        "line 4: `image`: no picture `c.png`",
    ] {
        assert!(told.iter().any(|issue| issue.contains(expected)), "{expected}: {told:?}");
    }
    write(&root.join("broken.jsonl"), &[lines[0], "{"].join("\n"));
    assert!(refused(&root.join("broken.jsonl")).contains("broken.jsonl: line 2:"));
}

#[test]
fn a_check_finds_what_is_wrong_and_what_needs_no_picture() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut rows = vec!["image,question,answer,part".to_string()];
    for index in 0..12 {
        draw(&root.join(format!("{index}.png")), index);
        rows.push(format!("{index}.png,is it a dog?,yes,train"));
        rows.push(format!("{index}.png,what colour?,{},train", ["red", "blue"][usize::from(index) % 2]));
    }
    draw(&root.join("100.png"), 100);
    fs::copy(root.join("3.png"), root.join("101.png")).unwrap();
    rows.push("100.png,is it a dog?,yes,test".into());
    rows.push("101.png,what colour?,purple,test".into());
    write(&root.join("data.csv"), &rows.join("\n"));
    fs::write(root.join("5.png"), b"no picture").unwrap();
    fs::remove_file(root.join("7.png")).unwrap();
    let parts = survey(&root.join("data.csv").display().to_string()).unwrap();
    let report = check(&parts, || ()).unwrap();
    assert_eq!((report.missing.len(), report.unreadable.len(), report.leaks.len()), (1, 1, 1));
    assert!(report.unreadable[0].0.ends_with("5.png"));
    let answers = report.answers.as_ref().unwrap();
    assert_eq!((answers.outside, answers.outside_examples.as_slice()), ([0, 1], &["purple".to_string()][..]));
    assert_eq!(answers.blind[1], Some(0.5));
    assert_eq!((answers.predictable.len(), answers.predictable[0].0.as_str()), (1, "is it a dog?"));
    assert_eq!(report.problems(), 4);
    assert_eq!((report.train.texts + report.validation.texts, report.test.texts), (24, 2));
}

#[test]
fn embedded_questions_and_captions_are_there_by_name_and_fit_their_lists() {
    let parts = open_parts("questions", PictureUse::Needed).unwrap();
    assert_eq!([parts.train.len(), parts.validation.len(), parts.test.len()], [19_200, 960, 3840]);
    let mut counts: BTreeMap<(usize, String), usize> = BTreeMap::new();
    for index in 0..parts.validation.len() {
        let sample = parts.validation.sample(index).unwrap();
        *counts.entry((sample.group.unwrap(), sample.answers[0].0.clone())).or_default() += 1;
    }
    for template in 0..8 {
        let own: HashSet<usize> =
            counts.iter().filter(|((group, _), _)| *group == template).map(|(_, count)| *count).collect();
        assert_eq!(own.len(), 1, "template {template}");
    }
    let captions = open("captions", Part::Test, PictureUse::Needed).unwrap();
    assert_eq!((captions.len(), captions.kind()), (2000, TextKind::Captions));
    let (text, wrong) = (captions.sample(4).unwrap().text, captions.hard_negative(4, [0, 0]).unwrap());
    let differing = text.split(' ').zip(wrong.split(' ')).filter(|(a, b)| a != b).count();
    assert_eq!(differing, 1, "{text} and {wrong}");
    let picture = captions.picture(4, 0).unwrap();
    let regions = Crops { side: 16, classes: 8 }.regions(&(&*captions, 4, 0)).unwrap();
    assert_eq!((picture.size(), regions.features.len()), ([64, 64], 768 * regions.len()));
    assert!(open("questions", Part::All, PictureUse::Needed).is_err());
    assert!(!is_vision_language("scenes") && is_vision_language("captions"));
}
