//! Shared by all commands that run a model of video: choosing the model.

use regard::weights::{VideoSource, resolve_video};

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
