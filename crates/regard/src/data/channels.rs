//! Pictures with the number of channels that a model takes.

use crate::Error;

/// Normalised `[3, H, W]` as `[channels, H, W]`: gray is the mean of the normalised channels.
///
/// # Errors
/// When the channels are neither 3 nor 1.
pub fn to_channels(rgb: Vec<f32>, channels: usize) -> Result<Vec<f32>, Error> {
    match channels {
        3 => Ok(rgb),
        1 => {
            let pixels = rgb.len() / 3;
            Ok((0..pixels).map(|i| (rgb[i] + rgb[i + pixels] + rgb[i + 2 * pixels]) / 3.0).collect())
        }
        other => Err(unknown(other)),
    }
}

/// # Errors
/// When a picture cannot have so many channels.
pub(super) fn check(channels: usize) -> Result<(), Error> {
    if matches!(channels, 1 | 3) { Ok(()) } else { Err(unknown(channels)) }
}

fn unknown(channels: usize) -> Error {
    Error::config("channels", format!("a picture has 3, or 1 in gray, the model takes {channels}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gray_is_the_mean_and_other_numbers_of_channels_are_refused() {
        let rgb = vec![0.0, 1.0, 3.0, 1.0, 6.0, 4.0];
        assert_eq!(to_channels(rgb.clone(), 3).unwrap(), rgb);
        assert_eq!(to_channels(rgb.clone(), 1).unwrap(), [3.0, 2.0]);
        assert!(to_channels(rgb, 4).unwrap_err().to_string().contains('4'));
        assert!(check(1).is_ok() && check(3).is_ok() && check(2).is_err());
    }
}
