//! The keys of a classification recipe.

use serde::{Deserialize, Serialize};

use super::{Distillation, Loss};
use crate::Error;
use crate::data::{Augment, Mix, Preprocess};
use crate::models::{self, ModelConfig};
use crate::train::{Common, Recipe, Section, check_positive, check_share};

/// How pictures become batches and losses. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ClassifySection {
    /// At most this many training pictures per class; 0 means all.
    pub per_class: usize,
    /// At most this many pictures per class of the validation and of the test part; 0 means all.
    pub test_per_class: usize,
    /// Pictures per step, over all processes and accumulated parts.
    pub batch: usize,
    /// Repeated augmentation: how many times a picture occurs in a row.
    pub repeats: usize,
    /// Stochastic depth: the probability of dropping the last residual branch.
    pub stochastic_depth: f64,
    /// Whether all branches have that probability, as in DeiT-III; otherwise it grows linearly with depth.
    pub uniform_depth: bool,
    /// Threads that prepare pictures.
    pub workers: usize,
    pub loss: Loss,
    pub augment: Augment,
    pub mix: Mix,
    pub distillation: Option<Distillation>,
    /// How pictures are resized and normalised; by default as the preset says.
    pub preprocess: Option<Preprocess>,
}

impl Default for ClassifySection {
    fn default() -> Self {
        Self {
            per_class: 0,
            test_per_class: 0,
            batch: 64,
            repeats: 1,
            stochastic_depth: 0.0,
            uniform_depth: false,
            workers: 2,
            loss: Loss::default(),
            augment: Augment::default(),
            mix: Mix::default(),
            distillation: None,
            preprocess: None,
        }
    }
}

impl Section for ClassifySection {
    fn common() -> Common {
        Common { model: "vit-nano".into(), data: "fashion".into(), ..Common::default() }
    }

    fn validate(&self, common: &Common) -> Result<(), Error> {
        check_positive("batch", self.batch)?;
        check_positive("repeats", self.repeats)?;
        if !self.batch.is_multiple_of(common.accumulate) {
            let reason = format!("{} parts do not divide a batch of {}", common.accumulate, self.batch);
            return Err(Error::config("accumulate", reason));
        }
        check_share("stochastic-depth", self.stochastic_depth)?;
        if self.stochastic_depth >= 1.0 {
            return Err(Error::config("stochastic-depth", "must be below 1, got 1"));
        }
        self.loss.validate()?;
        self.augment.validate()?;
        self.mix.validate()?;
        if let Some(distillation) = &self.distillation {
            distillation.validate()?;
        }
        Recipe { common: common.clone(), own: self.clone() }.preset().map(|_| ())
    }
}

impl Recipe<ClassifySection> {
    /// The model's configuration, from a preset or a TOML file.
    fn preset(&self) -> Result<(ModelConfig, Preprocess), Error> {
        let name = &self.common.model;
        let path = std::path::Path::new(name);
        if path.extension().is_none_or(|ending| ending != "toml") {
            let preset = models::preset(name)?;
            return Ok((preset.config, preset.preprocess));
        }
        let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
        let config = ModelConfig::from_toml(&text).map_err(|error| Error::file(path, error))?;
        let beside = path.with_file_name("preprocess.toml");
        let preprocess = if beside.is_file() {
            Preprocess::read(&beside)?
        } else {
            // preprocessing of the first preset of the family
            let family = models::presets().into_iter().find(|preset| preset.config.family() == config.family());
            family.map_or(Preprocess::WHOLE, |preset| preset.preprocess)
        };
        Ok((config, preprocess))
    }

    /// The model for a number of classes, and its preprocessing.
    ///
    /// # Errors
    /// When a field of the model is unknown or out of range, or it has fewer classes than the data.
    pub fn model(&self, classes: usize) -> Result<(ModelConfig, Preprocess), Error> {
        let (preset, preprocess) = self.preset()?;
        let mut config = preset.with("classes", serde_json::json!(classes))?;
        for (field, value) in self.common.changes() {
            config = config.with(field, value)?;
        }
        if config.classes() < classes {
            let reason = format!("the data has {classes} classes, got {}", config.classes());
            return Err(Error::config("set.classes", reason));
        }
        Ok((config, self.own.preprocess.unwrap_or(preprocess)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::classify::LossKind;
    use crate::train::ScheduleShape;

    type ClassifyRecipe = Recipe<ClassifySection>;

    #[test]
    fn an_empty_recipe_is_the_default_and_every_recipe_can_be_read_back() {
        assert_eq!(ClassifyRecipe::from_toml("").unwrap(), Recipe::default());
        let text = "
            model = 'resnet-nano'
            batch = 32
            set = { image = [28, 28] }
            optimiser = { rule = 'sgd', rate = 0.1, nesterov = true }
            schedule = { shape = { step = { every = 30, factor = 0.1 } } }
            loss = { kind = { binary = { threshold = 0.2 } } }
            augment = { crop = { random = { padding = 4 } }, flip = 0.5 }
        ";
        let recipe = ClassifyRecipe::from_toml(text).unwrap();
        assert_eq!(recipe.own.loss.kind, LossKind::Binary { threshold: 0.2 });
        assert_eq!(recipe.common.schedule.shape, ScheduleShape::Step { every: 30.0, factor: 0.1 });
        assert_eq!(ClassifyRecipe::from_toml(&recipe.to_toml("classify")).unwrap(), recipe);
        assert_eq!(recipe.model(7).unwrap().0.image(), [28, 28]);
        assert_eq!(recipe.model(7).unwrap().0.classes(), 7);
    }

    fn refused(text: &str) -> String {
        ClassifyRecipe::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line_and_the_nearest_key() {
        let error = refused("epochs = 3\nbach = 64\n");
        assert!(error.contains("line 2") && error.contains("`bach`") && error.contains("`batch`"), "{error}");
        let error = refused("[optimiser]\nrule = 'adamw'\nrate = 0.1\nbeta = 2\n");
        assert!(error.contains("`betas`"), "{error}");
        assert!(refused("[schedule]\nshape = 'cosin'").contains("`cosine`"));
        assert!(refused("model = 'vit-nanoo'").contains("`vit-nano`"));
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_name() {
        for (text, name) in [
            ("epochs = 0", "epochs"),
            ("batch = 10\naccumulate = 3", "accumulate"),
            ("stochastic-depth = 1.0", "stochastic-depth"),
            ("ema = 2.0", "ema"),
            ("clip = -1.0", "clip"),
            ("loss = { smoothing = 1.5 }", "loss.smoothing"),
            ("optimiser = { rule = 'adamw', rate = -1.0 }", "optimiser.rate"),
            ("groups = { layer-decay = nan }", "groups.layer-decay"),
            ("groups = { backbone-rate = -1.0 }", "groups.backbone-rate"),
        ] {
            assert!(refused(text).contains(name), "{text}: {}", refused(text));
        }
    }

    #[test]
    fn a_seed_that_toml_cannot_hold_is_refused_and_not_a_panic() {
        let mut recipe = ClassifyRecipe::default();
        recipe.common.seed = 1 << 63;
        assert!(recipe.validate().unwrap_err().to_string().contains("`seed`"));
    }

    #[test]
    fn fewer_classes_than_the_data_has_are_refused() {
        let recipe = ClassifyRecipe::default().with("set.classes", "5").unwrap();
        assert!(recipe.model(10).unwrap_err().to_string().contains("`set.classes`: the data has 10 classes, got 5"));
        assert_eq!(recipe.model(3).unwrap().0.classes(), 5);
    }

    #[test]
    fn a_model_may_be_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let config = models::preset("vit-nano").unwrap().config.with("depth", serde_json::json!(2)).unwrap();
        std::fs::write(&path, config.to_toml()).unwrap();
        let mut recipe = ClassifyRecipe::default();
        recipe.common.model = path.display().to_string();
        recipe.validate().unwrap();
        assert!(recipe.model(10).unwrap().0.to_toml().contains("depth = 2"));
    }

    #[test]
    fn one_key_can_be_changed_and_the_rest_stays() {
        let recipe = ClassifyRecipe::default();
        let recipe = recipe.with("optimiser.rate", "1e-4").unwrap().with("model", "resnet-nano").unwrap();
        assert_eq!((recipe.common.optimiser.rate(), recipe.common.model.as_str()), (1e-4, "resnet-nano"));
        assert_eq!(recipe.own, ClassifySection::default());
        let changed = recipe.with("set.image", "[28, 28]").unwrap();
        assert_eq!(changed.model(10).unwrap().0.image(), [28, 28]);
        assert!(recipe.with("optimiser.speed", "1").unwrap_err().to_string().contains("optimiser.speed"));
        assert!(recipe.with("batch.size", "1").unwrap_err().to_string().contains("not a table"));
        assert!(recipe.with("epochs", "many").is_err());
        assert!(recipe.with("bach", "1").unwrap_err().to_string().contains("`batch`"));
    }
}
