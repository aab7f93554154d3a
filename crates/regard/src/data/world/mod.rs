//! The garment world: tasks for detection and video without a download, painted from the embedded Fashion-MNIST.
//!
//! Nothing is stored. Everything follows from (seed, part, kind of sample, index), by exact operations alone (no sine, no
//! logarithm), so that the same index gives the same bytes on every machine. `garments` paints; `scenes` is pictures of
//! one to four things with boxes, `captions` tells what is in them, and `questions` asks; `clips` is short clips of a garment that
//! moves beside one that stays, `clip_texts` tells and asks of them.

mod captions;
mod clip_texts;
mod clips;
mod draw;
mod garments;
mod questions;
mod scenes;
mod turn;
mod words;

pub use captions::{Caption, SpatialRelation, caption};
pub use clip_texts::{CLIP_TEMPLATES, ClipQuestion, clip_question};
pub use clips::{Actor, CLIP_FRAMES, CLIP_SIDE, ClipTarget, MOTIONS, MovingScene, WorldClips, moving_scene};
pub use garments::{COLOURS, Garment, GarmentCanvas, GarmentPlacement, KINDS, colour_names};
pub use questions::{Question, TEMPLATES, question};
pub use scenes::{SCENE_SIDE, Scene, Scenes, Thing, scene};
pub use words::{ANSWERS, vocabulary};
