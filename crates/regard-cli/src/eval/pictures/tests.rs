use super::*;
use regard::data::{Picture, Preprocess};
use regard::{PackedModel, device, models};

/// Pictures of one level of gray each; every third is broken.
#[derive(Debug)]
struct Levels(Vec<String>);

impl Dataset for Levels {
    fn len(&self) -> usize {
        7
    }

    fn classes(&self) -> &[String] {
        &self.0
    }

    fn label(&self, index: usize) -> usize {
        index % 2
    }

    fn picture(&self, index: usize) -> Result<Picture, regard::Error> {
        match index % 3 {
            2 => Err(regard::Error::File { path: self.name(index), reason: "broken".into() }),
            _ => Picture::new([2, 2], vec![index as u8; 12]),
        }
    }

    fn name(&self, index: usize) -> String {
        format!("{index}.png")
    }
}

#[test]
fn pictures_that_can_be_read_come_in_order_with_their_labels_and_the_others_are_counted() {
    let config = models::preset("vit-nano").unwrap().config;
    let preprocess = Preprocess { mean: [0.0; 3], std: [1.0 / 255.0; 3], ..Preprocess::WHOLE };
    let model = PackedModel::new(config.init(&device::cpu()).unwrap());
    let model = Classifier { model, config, preprocess, labels: None };
    let pictures = Pictures { source: "levels".into(), dataset: Arc::new(Levels(vec!["even".into(), "odd".into()])) };
    let mut seen = Vec::new();
    let unreadable = pictures.visit(&model, 2, &device::cpu(), |images, labels| {
        let [size, ..] = images.dims();
        let levels = images.into_data().iter::<f32>().collect::<Vec<_>>();
        let first = |i: usize| levels[i * levels.len() / size].round() as usize;
        seen.push((0..size).map(|i| (first(i), labels[i])).collect::<Vec<_>>());
        Ok(String::new())
    });
    assert_eq!(unreadable.unwrap(), 2);
    assert_eq!(seen, [vec![(0, 0), (1, 1)], vec![(3, 1)], vec![(4, 0)], vec![(6, 0)]]);
}

#[test]
fn data_without_parts_is_taken_whole_unless_a_run_may_have_seen_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |path: &str| folder.path().join(path);
    let make = |name: &str| {
        std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        std::fs::write(path(name), "").unwrap();
    };
    for number in 0..5 {
        make(&format!("classes/cat/{number}.png"));
        make(&format!("parts/train/cat/{number}.png"));
    }
    make("parts/test/cat/6.png");
    let lines: Vec<String> = (0..5).map(|number| format!("{number}.png,0")).collect();
    make("manifest/x");
    std::fs::write(path("manifest/labels.csv"), lines.join("\n")).unwrap();
    make("marked/x");
    std::fs::write(path("marked/labels.csv"), lines.join(",train\n") + ",test").unwrap();
    let count = |name: &str, trained: bool| {
        let source = DataArgs { data: Some(path(name).display().to_string()), part: None };
        source.open(None, trained).unwrap().len()
    };
    for (name, whole, test) in [("classes", 5, 1), ("parts", 1, 1), ("manifest", 5, 1), ("marked", 1, 1)] {
        assert_eq!((count(name, false), count(name, true)), (whole, test), "{name}");
    }
}
