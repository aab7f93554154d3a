//! The garment world: tasks for detection and video without a download, painted from the embedded Fashion-MNIST.
//!
//! Nothing is stored. Everything follows from (seed, part, kind of sample, index), by exact operations alone (no sine, no
//! logarithm), so that the same index gives the same bytes on every machine. `garments` paints; `scenes` is pictures of
//! one to four things with boxes; `clips` is short clips of a garment that moves beside one that stays.

mod clips;
mod draw;
mod garments;
mod scenes;
mod turn;

pub use clips::{Actor, CLIP_FRAMES, CLIP_SIDE, ClipTarget, MOTIONS, MovingScene, WorldClips, moving_scene};
pub use garments::{COLOURS, Canvas, Garment, KINDS, Placement, colour_names};
pub use scenes::{SCENE_SIDE, Scene, Scenes, Thing, scene};
