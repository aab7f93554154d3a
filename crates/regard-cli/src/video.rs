//! Shared by all commands that run a model of video: choosing the model, and what it sees of a clip.

use burn::tensor::{Device, Tensor, TensorData};
use regard::data::{Batch, Clips, Picture, denormalise};
use regard::tasks::clips::{ClipPreparation, PreparedViews};
use regard::weights::{LoadedVideo, VideoSource, resolve_video};

use crate::failure::Failure;
use crate::model::{ChangeArgs, download_bar, field_and_value, note_untrained};

/// A named model of video with these changes. Prints a note if its weights are untrained.
pub fn video_source(name: &str, changes: &ChangeArgs) -> Result<VideoSource, Failure> {
    if changes.from.is_some() || changes.new_head.is_some() {
        let message = format!("`{name}` is a model of video, whose weights are recognised by their names");
        return Err(Failure::input(message, "leave `--from` and `--new-head` out"));
    }
    let mut source = resolve_video(name, &mut download_bar())?;
    for change in &changes.set {
        let (field, value) = field_and_value(change)?;
        source = source.with(field, value)?;
    }
    source.labels = source.labels.filter(|labels| labels.len() == source.config.classes());
    if source.is_fresh() {
        note_untrained(&source.name)?;
    }
    Ok(source)
}

/// One view of a clip as a model sees it.
pub fn preparation(video: &LoadedVideo) -> ClipPreparation {
    ClipPreparation::of(&video.config, video.preprocess, video.sampling)
}

/// `[views, C, T, H, W]`
pub fn tensor(views: &PreparedViews, preparation: &ClipPreparation, device: &Device) -> Clips {
    let [channels, frames, rows, columns] = preparation.shape();
    let shape = [views.count, channels, frames, rows, columns];
    Clips { pixels: Tensor::from_data(TensorData::new(views.pixels.clone(), shape), device) }
}

/// The frames of the first view as the model sees them, before normalisation.
pub fn seen_frames(views: &PreparedViews, preparation: &ClipPreparation) -> Vec<Picture> {
    let [channels, frames, rows, columns] = preparation.shape();
    let area = rows * columns;
    let plane = |frame: usize, channel: usize| &views.pixels[(channel * frames + frame) * area..][..area];
    let planes = (0..frames).flat_map(|frame| (0..channels).map(move |channel| plane(frame, channel)));
    let images = planes.flatten().copied().collect();
    let batch = Batch { images, shape: [frames, channels, rows, columns], targets: Vec::new() };
    denormalise(&batch, &preparation.preprocess)
}
