//! Checks a detection dataset before training.

use serde::Serialize;
use std::collections::{HashMap, HashSet};

use super::{Annotation, DetectionDataset, DetectionParts, Issue, orientation};
use crate::data::Part;
use crate::data::check::{ClassCount, for_each_sample, hash, reason_without};

/// Tolerance of boxes at the border in pixels: annotation tools round.
const OVER_BORDER: f64 = 1.0;
/// Objects with a shorter side below these strides of feature maps are hard to find.
pub const STRIDES: [usize; 3] = [8, 16, 32];

/// What was found in the parts of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DetectionReport {
    pub train: DetectionPartReport,
    pub validation: DetectionPartReport,
    pub test: DetectionPartReport,
    /// Objects of each class.
    pub classes: Vec<ClassCount>,
    /// Classes that are missing in some parts.
    pub in_one_part: Vec<ClassCount>,
    /// Issues of the files.
    pub issues: Vec<Issue>,
    pub unreadable: Vec<BadPicture>,
    pub faults: Vec<BoxFault>,
    /// Pictures whose size differs from that in the annotations.
    pub other_sizes: Vec<BadPicture>,
    /// The same pixels in more than one part.
    pub leaks: Vec<Vec<LeakedPicture>>,
    /// Whether boxes seem to be `x1, y1, x2, y2` instead of `x, y, w, h`.
    pub looks_like_corners: bool,
    pub exif: Exif,
    /// Objects whose shorter side is below each of [`STRIDES`].
    pub below_stride: [usize; 3],
    /// Square roots of areas in pixels.
    pub sizes: Histogram,
    /// Width over height.
    pub aspects: Histogram,
}

/// Counts of one part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DetectionPartReport {
    pub pictures: usize,
    /// Pictures without objects; these are kept, as background.
    pub without_objects: usize,
    pub objects: usize,
    pub crowds: usize,
    /// Maximum number of objects in a picture, and its name: a model needs more queries than that.
    pub most_objects: usize,
    pub fullest: Option<String>,
}

/// A picture that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadPicture {
    pub name: String,
    pub part: Part,
    pub reason: String,
}

/// A picture among its copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeakedPicture {
    pub name: String,
    pub part: Part,
}

/// A faulty box.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoxFault {
    pub kind: FaultKind,
    pub part: Part,
    pub picture: String,
    pub annotation: u64,
    pub class: String,
    /// Left, top, width and height in pixels.
    pub bounds: [f64; 4],
    /// Rows and columns of the picture.
    pub size: [usize; 2],
}

/// The fault of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// It is wholly outside the picture.
    Outside,
    /// It crosses the border by more than a pixel.
    OverBorder,
    /// Another object of the class has the same box.
    Duplicate,
}

/// Pictures with an EXIF orientation, by what the annotations' width and height fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exif {
    pub turned: usize,
    /// The upright picture, as usual.
    pub fits_upright: usize,
    /// The stored picture, which is then read as it is stored.
    pub fits_stored: usize,
    /// Both or neither, or there is no width and height: the upright one is taken.
    pub undecided: usize,
}

/// A histogram; the last bin is open.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// The lower edge of each bin.
    pub edges: Vec<f64>,
    pub counts: Vec<usize>,
}

impl Histogram {
    pub(in crate::data) fn new(edges: &[f64]) -> Self {
        Self { edges: edges.to_vec(), counts: vec![0; edges.len()] }
    }

    pub(in crate::data) fn count(&mut self, value: f64) {
        let bin = self.edges.partition_point(|edge| *edge <= value).saturating_sub(1);
        self.counts[bin] += 1;
    }
}

impl DetectionReport {
    pub fn parts(&self) -> [(Part, &DetectionPartReport); 3] {
        [(Part::Train, &self.train), (Part::Validation, &self.validation), (Part::Test, &self.test)]
    }

    /// Maximum number of objects in a picture of any part.
    pub fn most_objects(&self) -> usize {
        self.parts().iter().map(|(_, part)| part.most_objects).max().unwrap_or(0)
    }

    /// How many things are wrong.
    pub fn problems(&self) -> usize {
        self.issues.len()
            + self.unreadable.len()
            + self.faults.len()
            + self.other_sizes.len()
            + self.leaks.len()
            + self.in_one_part.len()
            + usize::from(self.looks_like_corners)
    }
}

/// The content of a picture.
struct Content {
    size: [usize; 2],
    /// Of the pixels.
    hash: [u8; 32],
    annotations: Vec<Annotation>,
}

/// A picture that was read.
struct Seen {
    part: Part,
    name: String,
    content: Result<Content, String>,
    declared: Option<[usize; 2]>,
    orientation: Option<super::Orientation>,
}

/// Reads every picture. `tick` is called after each.
pub fn check(parts: &DetectionParts, tick: impl Fn() + Sync) -> DetectionReport {
    let look = |part, own: &(dyn DetectionDataset + 'static), index| {
        let name = own.name(index);
        let content = own.sample(index).map(|(picture, annotations)| {
            let (size, pixels) = (picture.size(), picture.pixels());
            Content { size, hash: hash(size, pixels), annotations }
        });
        let content = content.map_err(|error| reason_without(&name, &error));
        let orientation = own.path(index).and_then(|path| orientation(path).ok());
        tick();
        Seen { part, name, content, declared: own.declared_size(index), orientation }
    };
    let seen = for_each_sample([&parts.train, &parts.validation, &parts.test], DetectionDataset::len, look);

    let names = parts.train.classes();
    let mut report = DetectionReport {
        train: DetectionPartReport::default(),
        validation: DetectionPartReport::default(),
        test: DetectionPartReport::default(),
        classes: ClassCount::none_of(names),
        in_one_part: Vec::new(),
        issues: parts.issues.clone(),
        unreadable: Vec::new(),
        faults: Vec::new(),
        other_sizes: Vec::new(),
        leaks: leaks(&seen),
        looks_like_corners: false,
        exif: Exif::default(),
        below_stride: [0; 3],
        sizes: Histogram::new(&[0.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 256.0, 512.0]),
        aspects: Histogram::new(&[0.0, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0]),
    };
    let mut corners = Corners::default();
    for found in &seen {
        let (size, annotations) = match &found.content {
            Ok(content) => (content.size, &content.annotations),
            Err(reason) => {
                let (name, part, reason) = (found.name.clone(), found.part, reason.clone());
                report.unreadable.push(BadPicture { name, part, reason });
                continue;
            }
        };
        if let Some([rows, columns]) = found.declared.filter(|declared| *declared != size) {
            let reason = format!("{} x {} pixels, the annotations say {columns} x {rows}", size[1], size[0]);
            report.other_sizes.push(BadPicture { name: found.name.clone(), part: found.part, reason });
        }
        report.exif.count(found);
        let part = match found.part {
            Part::Validation => &mut report.validation,
            Part::Test => &mut report.test,
            _ => &mut report.train,
        };
        part.pictures += 1;
        part.objects += annotations.len();
        part.without_objects += usize::from(annotations.is_empty());
        part.crowds += annotations.iter().filter(|annotation| annotation.crowd).count();
        if annotations.len() > part.most_objects {
            (part.most_objects, part.fullest) = (annotations.len(), Some(found.name.clone()));
        }
        for annotation in annotations {
            report.classes[annotation.class].add(found.part);
            let [_, _, w, h] = annotation.bounds;
            corners.count(annotation.bounds, size);
            report.sizes.count((w * h).sqrt());
            report.aspects.count(w / h);
            for (stride, count) in STRIDES.iter().zip(&mut report.below_stride) {
                *count += usize::from(w.min(h) < *stride as f64);
            }
        }
        let faulty = faults(annotations, size).into_iter().map(|(kind, annotation)| BoxFault {
            kind,
            part: found.part,
            picture: found.name.clone(),
            annotation: annotation.id,
            class: names[annotation.class].clone(),
            bounds: annotation.bounds,
            size,
        });
        report.faults.extend(faulty);
    }
    report.looks_like_corners = corners.are_likely();
    let has = report.parts().map(|(_, part)| part.objects > 0);
    let lacks = |count: &&ClassCount| {
        let counts = [count.train, count.validation, count.test];
        counts.iter().any(|count| *count > 0) && counts.iter().zip(has).any(|(count, has)| has && *count == 0)
    };
    report.in_one_part = report.classes.iter().filter(lacks).cloned().collect();
    report
}

/// Evidence that boxes are corners instead of sides.
#[derive(Default)]
struct Corners {
    boxes: usize,
    /// Boxes far over the border if read as sides.
    over: usize,
    /// Boxes inside the picture if read as corners.
    possible: usize,
}

impl Corners {
    fn count(&mut self, [x, y, w, h]: [f64; 4], [rows, columns]: [usize; 2]) {
        let (rows, columns) = (rows as f64, columns as f64);
        self.boxes += 1;
        self.over += usize::from(x + w > columns + OVER_BORDER || y + h > rows + OVER_BORDER);
        self.possible += usize::from(w > x && h > y && w <= columns + OVER_BORDER && h <= rows + OVER_BORDER);
    }

    /// At least a tenth of the boxes cross the border, and nearly all could be corners.
    const fn are_likely(&self) -> bool {
        10 * self.over > self.boxes && 100 * self.possible >= 98 * self.boxes
    }
}

fn faults(annotations: &[Annotation], [rows, columns]: [usize; 2]) -> Vec<(FaultKind, &Annotation)> {
    let mut seen: HashSet<(usize, [u64; 4])> = HashSet::new();
    let mut found = Vec::new();
    for annotation in annotations {
        let [x, y, w, h] = annotation.bounds;
        let over = [-x, -y, x + w - columns as f64, y + h - rows as f64];
        if x >= columns as f64 || y >= rows as f64 || x + w <= 0.0 || y + h <= 0.0 {
            found.push((FaultKind::Outside, annotation));
        } else if over.iter().any(|over| *over > OVER_BORDER) {
            found.push((FaultKind::OverBorder, annotation));
        }
        if !seen.insert((annotation.class, annotation.bounds.map(f64::to_bits))) {
            found.push((FaultKind::Duplicate, annotation));
        }
    }
    found
}

impl Exif {
    fn count(&mut self, seen: &Seen) {
        let Some(own) = seen.orientation.filter(|orientation| orientation.tag != 1) else { return };
        self.turned += 1;
        *match seen.declared {
            Some(declared) if own.fits_stored_only(declared) => &mut self.fits_stored,
            Some(declared) if declared == own.upright() && declared != own.stored => &mut self.fits_upright,
            _ => &mut self.undecided,
        } += 1;
    }
}

fn leaks(seen: &[Seen]) -> Vec<Vec<LeakedPicture>> {
    let mut by_content: HashMap<[u8; 32], Vec<&Seen>> = HashMap::new();
    for found in seen {
        if let Ok(content) = &found.content {
            by_content.entry(content.hash).or_default().push(found);
        }
    }
    let is_leak = |group: &Vec<&Seen>| group.iter().any(|other| other.part != group[0].part);
    let mut leaks: Vec<Vec<LeakedPicture>> = by_content
        .into_values()
        .filter(is_leak)
        .map(|group| group.iter().map(|seen| LeakedPicture { name: seen.name.clone(), part: seen.part }).collect())
        .collect();
    leaks.sort_by(|a, b| a[0].name.cmp(&b[0].name));
    leaks
}
