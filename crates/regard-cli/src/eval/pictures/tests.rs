use super::*;
use regard::data::{Picture, Preprocess};
use regard::{device, models};

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
    let model = Loaded { model: config.init(&device::cpu()).unwrap(), config, preprocess };
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
fn a_folder_of_classes_is_whole_and_one_of_parts_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let make = |path: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    };
    make("classes/cat/1.png");
    make("parts/train/cat/1.png");
    make("parts/test/cat/1.png");
    make("manifest/labels.csv");
    make("binary/test_batch.bin");
    let whole = |name: &str| is_whole(&folder.path().join(name));
    assert!(whole("classes") && whole("manifest"));
    assert!(!whole("parts") && !whole("binary") && !whole("fashion"));
}
