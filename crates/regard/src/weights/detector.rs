//! Detectors by name, by the same rules as classifiers ([`resolve`](fn@super::resolve)): a run folder, a folder
//! written by `regard export`, an embedded detector, a preset, a TOML file, and any of these `=WEIGHTS`.

use burn::tensor::{Device, TensorData};
use std::path::{Path, PathBuf};

use super::{
    Checkpoint, LoadOptions, Progress, Tensors, WeightsOrigin, fetch, fill, fit, from_bytes, read, recognise, resolve,
    shapes, tensors, translate,
};
use crate::data::{DetectionPreprocess, labels};
use crate::models::detect::{self, Detector, DetectorConfig};
use crate::{Error, file, nearest};

/// A detector that is not loaded yet.
#[derive(Clone, Debug)]
pub struct DetectorSource {
    /// Its name in tables and figures.
    pub name: String,
    pub config: DetectorConfig,
    pub preprocess: DetectionPreprocess,
    /// Its class names, if known.
    pub labels: Option<Vec<String>>,
    pub origin: WeightsOrigin,
    weights: Weights,
}

#[derive(Clone, Debug)]
enum Weights {
    Fresh,
    Embedded(&'static EmbeddedDetector),
    File(PathBuf),
}

/// A detector with its weights.
#[derive(Debug)]
pub struct LoadedDetector {
    pub name: String,
    pub model: Detector,
    pub config: DetectorConfig,
    pub preprocess: DetectionPreprocess,
    pub labels: Option<Vec<String>>,
}

/// An embedded detector.
#[derive(Debug)]
pub struct EmbeddedDetector {
    pub name: &'static str,
    model: &'static str,
    preprocess: &'static str,
    classes: &'static str,
    /// In half precision.
    weights: &'static [u8],
}

/// The embedded detectors, trained on `scenes`: `docs/results.md` has the command,
/// `examples/embed_detector.rs` makes the files from the run.
pub static EMBEDDED_DETECTORS: &[EmbeddedDetector] = &[EmbeddedDetector {
    name: "scenes-retinanet",
    model: include_str!("../../assets/scenes/model.toml"),
    preprocess: include_str!("../../assets/scenes/preprocess.toml"),
    classes: include_str!("../../assets/scenes/classes.txt"),
    weights: include_bytes!("../../assets/scenes/best.safetensors"),
}];

/// The detector of a name; weights from the network are fetched into the cache, with `progress`.
///
/// # Errors
/// When there is no such detector, a file next to the weights is not supported, or a download fails.
pub fn resolve_detector(text: &str, progress: &mut dyn FnMut(Progress)) -> Result<DetectorSource, Error> {
    if let Some(source) = without_weights(text)? {
        return Ok(source);
    }
    let unknown = |reason: String| Error::Field { field: text.into(), reason };
    let named = text.split_once('=').filter(|(model, weights)| !model.is_empty() && !weights.is_empty());
    let Some((model, address)) = named else {
        if is_classifier(text) {
            return Err(unknown("a classifier; `regard predict` takes it".into()));
        }
        let presets = detect::presets();
        let known: Vec<&str> =
            EMBEDDED_DETECTORS.iter().map(|one| one.name).chain(presets.iter().map(|one| one.name)).collect();
        return Err(unknown(nearest::unknown(text, &known)));
    };
    let source = match without_weights(model)? {
        Some(source) => source,
        None => resolve_detector(model, progress)?,
    };
    let path = fetch(address, progress)?;
    let labels = source.labels.filter(|labels| labels.len() == source.config.classes());
    Ok(DetectorSource { origin: WeightsOrigin::Checkpoint, weights: Weights::File(path), labels, ..source })
}

/// Whether a name without weights is that of a classifier.
pub(super) fn is_classifier(text: &str) -> bool {
    crate::models::preset(text).is_ok() || super::EMBEDDED.iter().any(|one| one.name == text)
}

/// Whether a name is that of a detector.
#[must_use]
pub fn is_detector(text: &str) -> bool {
    let names = [Some(text), text.split_once('=').map(|(model, _)| model)];
    // an invalid configuration of a detector is still one of a detector
    names.into_iter().flatten().any(|name| !matches!(without_weights(name), Ok(None)))
}

/// Every kind of name except `MODEL=WEIGHTS`; `None` if it is not a detector.
fn without_weights(text: &str) -> Result<Option<DetectorSource>, Error> {
    let path = Path::new(text);
    let config = path.join("model.toml");
    if config.is_file() {
        return Ok(of_toml(&config)?.map(|source| DetectorSource {
            name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            origin: WeightsOrigin::Run,
            weights: Weights::File(weights_in(path)),
            ..source
        }));
    }
    if let Some(embedded) = EMBEDDED_DETECTORS.iter().find(|one| one.name == text) {
        return embedded.source().map(Some);
    }
    if let Ok(preset) = detect::preset(text) {
        return Ok(Some(DetectorSource {
            name: preset.name.into(),
            config: preset.config,
            preprocess: preset.preprocess,
            labels: None,
            origin: WeightsOrigin::Fresh,
            weights: Weights::Fresh,
        }));
    }
    if path.extension().is_some_and(|ending| ending == "toml") && path.is_file() {
        return of_toml(path);
    }
    Ok(None)
}

/// The weights of a run, or of a folder written by [`export_detector`](super::export_detector).
fn weights_in(folder: &Path) -> PathBuf {
    let [run, exported] = ["best.safetensors", "model.safetensors"].map(|file| folder.join(file));
    if exported.is_file() && !run.is_file() { exported } else { run }
}

/// A configuration file, with the files next to it in a run folder; `None` if it is not a detector's.
fn of_toml(path: &Path) -> Result<Option<DetectorSource>, Error> {
    let text = file::read_text(path)?;
    if !detect::is_config(&text) {
        return Ok(None);
    }
    let config = DetectorConfig::from_toml(&text).map_err(|error| Error::file(path, error))?;
    let (own, classes) = (path.with_file_name("preprocess.toml"), path.with_file_name("classes.txt"));
    let preprocess = if own.is_file() { DetectionPreprocess::read(&own)? } else { detect::usual_preprocess(&config) };
    Ok(Some(DetectorSource {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        config,
        preprocess,
        labels: if classes.is_file() { Some(labels::read(&classes)?) } else { None },
        origin: WeightsOrigin::Fresh,
        weights: Weights::Fresh,
    }))
}

impl EmbeddedDetector {
    fn source(&'static self) -> Result<DetectorSource, Error> {
        let spoiled = |error: toml::de::Error| Error::file(Path::new(self.name), error.message());
        Ok(DetectorSource {
            name: self.name.into(),
            config: DetectorConfig::from_toml(self.model)?,
            preprocess: toml::from_str(self.preprocess).map_err(spoiled)?,
            labels: Some(self.classes.lines().map(String::from).collect()),
            origin: WeightsOrigin::Embedded,
            weights: Weights::Embedded(self),
        })
    }
}

impl DetectorSource {
    /// Whether the weights are fresh, and answers mean nothing.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.origin == WeightsOrigin::Fresh
    }

    /// Reads the weights. Fresh ones are those of seed 0.
    ///
    /// # Errors
    /// When the file cannot be read, or its tensors do not fit the detector or are not finite.
    pub fn load(&self, device: &Device) -> Result<LoadedDetector, Error> {
        let model = match &self.weights {
            Weights::Fresh => {
                device.seed(0);
                let model = self.config.init(device)?;
                // parameters are initialised on first use; a copy would draw its own
                tensors(&model);
                model
            }
            Weights::Embedded(embedded) => {
                fill(self.config.init(device)?, &from_bytes(embedded.weights, Path::new(embedded.name))?)?
            }
            Weights::File(path) => fit(self.config.init(device)?, read(path)?, &LoadOptions::default())?.model,
        };
        let Self { name, config, preprocess, labels, .. } = self.clone();
        Ok(LoadedDetector { name, model, config, preprocess, labels })
    }
}

/// A detector whose trunk has the weights of a classifier: a file, an address, or a classifier by any of its names.
///
/// # Errors
/// When the weights cannot be read or do not fit the trunk; what is missing is named.
pub fn fill_trunk(detector: Detector, name: &str) -> Result<Detector, Error> {
    let classifier = classifier_tensors(name)?;
    let prefix = detector.trunk_prefix();
    let mut own = tensors(&detector);
    let mut problems = Vec::new();
    for (path, tensor) in own.iter_mut().filter(|(path, _)| path.starts_with(prefix)) {
        match classifier.get(&path[prefix.len()..]) {
            Some(given) if given.shape() == tensor.shape() => *tensor = given.clone(),
            Some(given) => {
                let (given, wanted) = (given.shape().to_vec(), tensor.shape().to_vec());
                problems.push(format!("`{path}` is {given:?} in `{name}`, the trunk needs {wanted:?}"));
            }
            None => problems.push(format!("missing `{}` in `{name}`", &path[prefix.len()..])),
        }
    }
    if problems.is_empty() { fill(detector, &own) } else { Err(Error::weights(problems)) }
}

fn classifier_tensors(name: &str) -> Result<Tensors, Error> {
    if Path::new(name).is_file() || name.contains("://") || name.starts_with("hf:") {
        let Checkpoint { tensors, .. } = read(&fetch(name, &mut |_| {})?)?;
        let upstream = recognise(tensors.keys().map(String::as_str));
        return translate(tensors, upstream);
    }
    let source = resolve(name, &mut |_| {})?;
    if source.is_fresh() {
        return Err(Error::config("trunk", format!("`{name}` has no weights; `{name}=WEIGHTS` names them")));
    }
    Ok(tensors(&source.load(&crate::device::cpu())?.model))
}

/// A detector with the weights of another one of the same kind; where only layers that know the classes differ in shape,
/// these begin anew.
///
/// # Errors
/// When the weights cannot be read, or other layers do not fit.
pub fn begin_detector(detector: Detector, address: &str) -> Result<Detector, Error> {
    let given = if Path::new(address).is_file() || address.contains("://") || address.starts_with("hf:") {
        let Checkpoint { tensors, .. } = read(&fetch(address, &mut |_| {})?)?;
        let upstream = recognise(tensors.keys().map(String::as_str));
        translate(tensors, upstream)?
    } else {
        let source = resolve_detector(address, &mut |_| {})?;
        if source.is_fresh() {
            let reason = format!("`{address}` has no weights; `{address}=WEIGHTS` names them");
            return Err(Error::config("weights", reason));
        }
        tensors(&source.load(&crate::device::cpu())?.model)
    };
    let (own, wanted) = (tensors(&detector), shapes(&detector));
    let begin = |(name, tensor): (String, TensorData)| {
        let other = wanted.get::<String>(&name).is_some_and(|shape| *shape != tensor.shape().to_vec());
        if other && detect::knows_classes(&name) { (name.clone(), own[&name].clone()) } else { (name, tensor) }
    };
    fill(detector, &given.into_iter().map(begin).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pass;
    use crate::data::{Bounds, Part, detection};
    use crate::device::cpu;

    #[test]
    fn the_embedded_detector_finds_most_garments_of_test_scenes() {
        let scenes = detection::open("scenes", Part::Test).unwrap();
        for embedded in EMBEDDED_DETECTORS {
            let detector = resolve_detector(embedded.name, &mut |_| {}).unwrap().load(&cpu()).unwrap();
            assert_eq!(detector.labels.as_deref(), Some(scenes.classes()));
            let (mut objects, mut found) = (0, 0);
            for index in 0..40 {
                let (picture, annotations) = scenes.sample(index).unwrap();
                let batch = detector.preprocess.batch(&[detector.preprocess.prepare(&picture)]).unwrap();
                let detections = detector.model.detect(&batch.to_device(&cpu()), &mut Pass::silent()).remove(0);
                for one in annotations {
                    let bounds = Bounds::from_coco(one.bounds, picture.size());
                    let fits = |other: &crate::data::Detection| {
                        other.class == one.class && other.score > 0.4 && other.bounds.iou(&bounds) > 0.5
                    };
                    objects += 1;
                    found += usize::from(detections.iter().any(fits));
                }
            }
            assert!(10 * found > 7 * objects, "{}: {found} of {objects}", embedded.name);
        }
    }

    #[test]
    fn a_name_of_a_classifier_is_no_detector_and_a_wrong_one_gets_the_nearest() {
        let error_of = |name: &str| resolve_detector(name, &mut |_| {}).unwrap_err().to_string();
        assert!(error_of("vit-nano").contains("classifier"));
        assert!(error_of("detr-nanoo").contains("`detr-nano`"));
        assert!(is_detector("detr-r50") && is_detector("detr-r50=FILE") && !is_detector("deit-tiny"));
    }
}
