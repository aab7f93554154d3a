use super::*;
use crate::data::{
    Augment, Batch, Crop, Dataset, LabelledImages, Mix, Picture, Preparation, Preprocess, RandAugment, Target, prepare,
    to_channels,
};
use crate::testing::Toy;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;

/// Everything that is random is on.
fn loader() -> Loader<LabelledImages> {
    let augment = Augment {
        crop: Crop::Random { padding: 1 },
        flip: 0.5,
        rand_augment: Some(RandAugment::default()),
        erase: 0.25,
        ..Augment::default()
    };
    let preparation = Preparation {
        image: [6, 6],
        channels: 3,
        preprocess: Preprocess::WHOLE,
        augment: Some(augment),
        mix: Mix { mixup: 0.8, cutmix: 1.0, probability: 0.8, ..Mix::default() },
        seed: 2,
    };
    Loader {
        samples: LabelledImages { dataset: Arc::new(Toy::new(40, 4, [7, 9])), preparation },
        order: Order { samples: 40, batch: 8, repeats: 1, seed: Some(1), rank: 0, ranks: 1 },
        workers: 0,
    }
}

/// The same of other pictures.
fn with(dataset: Arc<dyn Dataset>, mut loader: Loader<LabelledImages>) -> Loader<LabelledImages> {
    loader.samples.dataset = dataset;
    loader
}

/// Pictures as they are, not mixed.
fn plain() -> Loader<LabelledImages> {
    let mut loader = loader();
    loader.samples.preparation.augment = None;
    loader.samples.preparation.mix = Mix::default();
    loader
}

fn batches<S: Samples>(loader: &Loader<S>, epoch: usize, step: usize) -> Vec<S::Batch> {
    loader.epoch(epoch, step).map(|batch| batch.unwrap()).collect()
}

/// Batches before the error, and the error.
fn failure(loader: &Loader<LabelledImages>) -> (usize, String) {
    let mut batches = loader.epoch(0, 0);
    let right = batches.by_ref().take_while(Result::is_ok).count();
    assert!(batches.next().is_none(), "something came after the error");
    let error = loader.epoch(0, 0).find_map(Result::err).expect("no error");
    (right, error.to_string())
}

#[test]
fn any_number_of_threads_makes_the_same_batches() {
    let alone = batches(&loader(), 3, 0);
    assert_eq!(alone.len(), 5);
    for workers in [1, 2, 5, 9] {
        assert_eq!(batches(&Loader { workers, ..loader() }, 3, 0), alone, "{workers} workers");
    }
}

#[test]
fn from_a_step_on_it_is_the_rest_of_the_epoch() {
    let whole = batches(&loader(), 1, 0);
    for workers in [0, 2] {
        for step in 0..=6 {
            let loader = Loader { workers, ..loader() };
            assert_eq!(batches(&loader, 1, step), whole[step.min(5)..], "step {step}, {workers} workers");
        }
    }
}

#[test]
fn epochs_and_seeds_differ() {
    let first = batches(&loader(), 0, 0);
    assert_ne!(first, batches(&loader(), 1, 0));
    let mut other = loader();
    other.samples.preparation.seed += 1;
    assert_ne!(first, batches(&other, 0, 0));
    assert_eq!(first, batches(&loader(), 0, 0));
}

#[test]
fn a_picture_changes_with_the_epoch_and_the_mix_with_the_step() {
    let mut changed = loader();
    changed.order.seed = None;
    changed.samples.preparation.mix = Mix::default();
    assert_ne!(batches(&changed, 0, 0), batches(&changed, 1, 0));

    let mut mixed = plain();
    mixed.samples.preparation.mix = Mix { mixup: 0.8, ..Mix::default() };
    let shares = |epoch| batches(&mixed, epoch, 0).into_iter().map(|batch| batch.targets[0].share).collect::<Vec<_>>();
    let all = [shares(0), shares(1)].concat();
    assert!((1..10).all(|place| !all[..place].contains(&all[place])), "{all:?}");
}

#[test]
fn every_picture_comes_once_an_epoch_with_its_class() {
    let loader = plain();
    let prepared = |index| {
        let picture = loader.samples.dataset.picture(index).unwrap();
        (prepare(&picture, &Preprocess::WHOLE, [6, 6]), loader.samples.dataset.label(index))
    };
    let all: Vec<_> = (0..40).map(prepared).collect();
    let mut seen = BTreeSet::new();
    for batch in batches(&loader, 0, 0) {
        assert_eq!(batch.shape, [8, 3, 6, 6]);
        for (image, target) in batch.images.chunks(108).zip(&batch.targets) {
            let index = all.iter().position(|(other, _)| other == image).expect("no such picture");
            assert_eq!(*target, Target::pure(all[index].1));
            seen.insert(index);
        }
    }
    assert_eq!(seen.len(), 40);
}

#[test]
fn ranks_together_see_what_one_sees() {
    for ranks in [2, 4] {
        let parts: Vec<Vec<Batch>> = (0..ranks)
            .map(|rank| {
                let mut loader = Loader { workers: rank % 2, ..loader() };
                (loader.order.rank, loader.order.ranks) = (rank, ranks);
                batches(&loader, 2, 0)
            })
            .collect();
        for (step, whole) in batches(&loader(), 2, 0).into_iter().enumerate() {
            let images: Vec<f32> = parts.iter().flat_map(|part| part[step].images.clone()).collect();
            let targets: Vec<Target> = parts.iter().flat_map(|part| part[step].targets.clone()).collect();
            assert!(images == whole.images && targets == whole.targets, "{ranks} ranks, step {step}");
        }
    }
}

#[test]
fn repeats_of_a_picture_are_changed_differently() {
    let mut loader = loader();
    loader.samples.preparation.mix = Mix::default();
    loader.order.repeats = 2;
    for batch in batches(&loader, 0, 0) {
        for (images, targets) in batch.images.chunks(216).zip(batch.targets.chunks(2)) {
            assert_ne!(images[..108], images[108..]);
            assert_eq!(targets[0], targets[1]);
        }
    }
}

#[test]
fn gray_is_the_mean_of_the_normalised_channels() {
    let colour = plain();
    let mut gray = plain();
    gray.samples.preparation.channels = 1;
    for (gray, colour) in batches(&gray, 0, 0).iter().zip(batches(&colour, 0, 0)) {
        assert_eq!(gray.shape, [8, 1, 6, 6]);
        for (gray, rgb) in gray.images.chunks(36).zip(colour.images.chunks(108)) {
            assert_eq!(gray, to_channels(rgb.to_vec(), 1).unwrap());
        }
    }
}

#[test]
fn a_test_ends_with_a_short_batch() {
    let mut loader = plain();
    loader.order = Order { seed: None, batch: 16, ..loader.order };
    let sizes: Vec<usize> = batches(&loader, 0, 0).iter().map(Batch::len).collect();
    assert_eq!(sizes, [16, 16, 8]);
}

/// A dataset with something wrong at one picture.
#[derive(Debug)]
struct Faulty {
    toy: Toy,
    at: usize,
    fault: Fault,
    reads: AtomicUsize,
}

#[derive(Debug)]
enum Fault {
    Unreadable,
    Panics,
    None,
}

impl Faulty {
    fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self { toy: Toy::new(40, 4, [7, 9]), at: 20, fault, reads: AtomicUsize::new(0) })
    }
}

impl Dataset for Faulty {
    fn len(&self) -> usize {
        self.toy.len()
    }

    fn classes(&self) -> &[String] {
        self.toy.classes()
    }

    fn label(&self, index: usize) -> usize {
        self.toy.label(index)
    }

    fn picture(&self, index: usize) -> Result<Picture, Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::Unreadable if index == self.at => {
                Err(Error::File { path: self.name(index), reason: "broken".into() })
            }
            Fault::Panics if index == self.at => panic!("out of luck"),
            _ => self.toy.picture(index),
        }
    }

    fn name(&self, index: usize) -> String {
        self.toy.name(index)
    }
}

#[test]
fn an_unreadable_picture_is_an_error_that_names_it_and_so_is_a_panic() {
    for (fault, reason) in [(Fault::Unreadable, "broken"), (Fault::Panics, "out of luck")] {
        let dataset = Faulty::new(fault);
        for workers in [0, 1, 2, 5] {
            let mut loader = Loader { workers, ..with(dataset.clone(), loader()) };
            // in the order of the dataset: picture 20 is in the third batch
            loader.order.seed = None;
            loader.samples.preparation.mix = Mix::default();
            let (right, error) = failure(&loader);
            assert_eq!(right, 2, "{workers} workers");
            assert!(error.contains("picture 20") && error.contains(reason), "{error}");
        }
    }
}

#[test]
fn what_is_dropped_stops_its_threads_and_no_more_is_read_than_fits_the_queues() {
    let dataset = Faulty::new(Fault::None);
    let toy: Arc<dyn Dataset> = dataset.clone();
    let mut loader = Loader { workers: 1, ..with(toy, plain()) };
    loader.order.batch = 2;
    let mut batches = loader.epoch(0, 0);
    batches.next().unwrap().unwrap();
    drop(batches);
    // the loader, the dataset here, and no thread
    assert_eq!(Arc::strong_count(&dataset), 2);
    // one batch was taken, two wait, and one is ready to
    let reads = dataset.reads.load(Ordering::Relaxed);
    assert!(reads <= 8, "{reads} pictures were read");
}

#[test]
fn who_is_told_to_stop_reads_no_further_picture() {
    let dataset = Faulty::new(Fault::None);
    let maker = Arc::new(with(dataset.clone(), plain()).epoch_loader(0));
    drop(Batches::new(Arc::clone(&maker), 0..5, 0));
    assert!(maker.batch(0).unwrap().is_none());
    assert_eq!(dataset.reads.load(Ordering::Relaxed), 0);
}

#[test]
fn what_cannot_work_is_an_error_at_once() {
    let wrong = |change: fn(&mut Loader<LabelledImages>)| {
        let mut loader = Loader { workers: 2, ..loader() };
        change(&mut loader);
        let (right, error) = failure(&loader);
        assert_eq!(right, 0);
        error
    };
    for (error, word) in [
        (wrong(|loader| loader.order.batch = 41), "41"),
        (wrong(|loader| loader.order.samples = 41), "`samples`: must be at most 40, got 41"),
        (wrong(|loader| loader.samples.preparation.channels = 2), "`channels`"),
        (wrong(|loader| loader.samples.preparation.image = [0, 6]), "`image`"),
        (wrong(|loader| loader.samples.preparation.mix.switch = 2.0), "`mix.switch`"),
        (wrong(|loader| loader.samples.preparation.augment.as_mut().unwrap().flip = 2.0), "`augment.flip`"),
    ] {
        assert!(error.contains(word), "{error}");
    }
}

/// Samples of different sizes: as many numbers as the index has in binary, drawn by the epoch.
#[derive(Clone, Debug)]
struct Bits;

impl Samples for Bits {
    type Sample = Vec<u64>;
    type Batch = Vec<Vec<u64>>;

    fn len(&self) -> usize {
        40
    }

    fn name(&self, index: usize) -> String {
        index.to_string()
    }

    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    fn load(&self, SampleId { index, epoch, draw_id }: SampleId) -> Result<Self::Sample, Error> {
        Ok(vec![100 * epoch + draw_id; index.count_ones() as usize])
    }

    fn collate(&self, samples: Vec<Self::Sample>) -> Result<Self::Batch, Error> {
        Ok(samples)
    }
}

#[test]
fn samples_need_not_be_pictures_of_one_size() {
    let order = Order { samples: 40, batch: 8, repeats: 1, seed: Some(1), rank: 0, ranks: 1 };
    let load = |workers, step| batches(&Loader { samples: Bits, order, workers }, 3, step);
    let expected = |step| {
        let sample = |(index, _): (usize, u64)| vec![300 + index as u64; index.count_ones() as usize];
        order.batch(3, step).into_iter().map(sample).collect::<Vec<_>>()
    };
    let whole: Vec<_> = (0..5).map(expected).collect();
    for workers in [0, 1, 3] {
        assert_eq!(load(workers, 0), whole);
        assert_eq!(load(workers, 2), whole[2..]);
    }
    let half = |rank| batches(&Loader { samples: Bits, order: Order { rank, ranks: 2, ..order }, workers: 1 }, 3, 0);
    let joined: Vec<_> = half(0).into_iter().zip(half(1)).map(|(left, right)| [left, right].concat()).collect();
    assert_eq!(joined, whole);
}
