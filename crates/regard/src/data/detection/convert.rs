//! Converts detection datasets between formats.
//!
//! | | ids | area, crowd | difficult | boxes | classes and their order | parts |
//! |---|---|---|---|---|---|---|
//! | COCO | yes | yes | yes, a key of its own | yes | yes | yes |
//! | VOC | numbered anew | yes, elements of their own | yes | yes | `classes.txt` | yes |
//! | YOLO | numbered anew | no | no | rounded, as fractions | yes | yes |
//! | CSV | numbered anew | yes | yes | yes | `classes.txt` | yes |
//!
//! Pictures are copied unchanged. Losses are reported.

use quick_xml::escape::escape;
use serde::Serialize;
use serde_json::json;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Annotation, DetectionDataset, DetectionParts, orientation};
use crate::Error;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnnotationFormat {
    Coco,
    Voc,
    Yolo,
    Csv,
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Converted {
    pub pictures: usize,
    pub boxes: usize,
    /// What the format cannot represent, and how often.
    pub lost: Vec<String>,
}

/// A picture to write.
struct Item<'a> {
    /// Name of the copy.
    file: String,
    image_id: u64,
    /// Rows and columns.
    size: [usize; 2],
    annotations: Vec<Annotation>,
    classes: &'a [String],
}

impl Item<'_> {
    fn stem(&self) -> &str {
        self.file.rsplit_once('.').map_or(&self.file, |(stem, _)| stem)
    }
}

/// Writes the three parts to a new or empty folder. `tick` is called after each picture.
///
/// # Errors
/// When the folder is not empty, or something cannot be read or written; the error names it.
pub fn convert(
    parts: &DetectionParts,
    format: AnnotationFormat,
    output: &Path,
    tick: impl Fn(),
) -> Result<Converted, Error> {
    if fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::file(output, "not empty; a new folder is needed"));
    }
    let mut names = HashSet::new();
    let (mut pictures, mut lost) = (0, Lost::default());
    let mut tables = Vec::new();
    for (part, dataset) in [("train", &parts.train), ("val", &parts.validation), ("test", &parts.test)] {
        if dataset.is_empty() {
            continue;
        }
        let folder = output.join(picture_folder(format, part));
        make(&folder)?;
        let mut items = Vec::with_capacity(dataset.len());
        for index in 0..dataset.len() {
            let item = item(&**dataset, index, format, &folder, &mut names)?;
            lost.count(&item, dataset.image_id(index), items.len());
            items.push(item);
            pictures += 1;
            tick();
        }
        match format {
            AnnotationFormat::Coco => coco(output, part, &items)?,
            AnnotationFormat::Voc => voc(output, part, &items)?,
            AnnotationFormat::Yolo => yolo(output, part, &items)?,
            AnnotationFormat::Csv => tables.extend(csv_rows(part, &items)),
        }
    }
    let classes = parts.train.classes();
    let list = classes.iter().fold(String::new(), |list, name| list + name + "\n");
    match format {
        AnnotationFormat::Coco => {}
        AnnotationFormat::Voc => write_file(&output.join("classes.txt"), list.as_bytes())?,
        AnnotationFormat::Yolo => write_file(&output.join("data.yaml"), data_yaml(parts).as_bytes())?,
        AnnotationFormat::Csv => {
            write_file(&output.join("classes.txt"), list.as_bytes())?;
            write_file(&output.join("boxes.csv"), &csv_table(&tables)?)?;
        }
    }
    Ok(Converted { pictures, boxes: lost.boxes, lost: lost.texts(format) })
}

fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))
}

/// The folder is new: nothing reads it before it is complete.
fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    fs::write(path, bytes).map_err(|error| Error::file(path, error))
}

fn picture_folder(format: AnnotationFormat, part: &str) -> PathBuf {
    match format {
        AnnotationFormat::Coco => part.into(),
        AnnotationFormat::Voc => "JPEGImages".into(),
        AnnotationFormat::Yolo | AnnotationFormat::Csv => Path::new("images").join(part),
    }
}

/// Copies a picture with its boxes.
fn item<'a>(
    dataset: &'a dyn DetectionDataset,
    index: usize,
    format: AnnotationFormat,
    folder: &Path,
    names: &mut HashSet<String>,
) -> Result<Item<'a>, Error> {
    let annotations = dataset.annotations(index)?;
    let path = dataset.path(index);
    let (stem, ending) = match path {
        Some(path) => (
            path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            path.extension().unwrap_or_default().to_string_lossy().into_owned(),
        ),
        None => (dataset.name(index).replace(['/', '\\', ' ', '#'], "_"), "png".into()),
    };
    // names are unique over all parts, without extensions: VOC and YOLO identify pictures by them
    let mut unique = stem.clone();
    let mut number = 1;
    while !names.insert(unique.to_lowercase()) {
        number += 1;
        unique = format!("{stem}_{number}");
    }
    let turned = path.map(orientation).transpose()?;
    let (declared, upright) = (dataset.declared_size(index), turned.map(|turned| turned.upright()));
    let is_stored = turned.zip(declared).is_some_and(|(turned, declared)| turned.fits_stored_only(declared));
    let (file, size) = match (path, upright) {
        // formats without sizes need upright pictures
        (Some(path), Some(upright)) if !(is_stored && format == AnnotationFormat::Yolo) => {
            let file = format!("{unique}.{ending}");
            fs::copy(path, folder.join(&file)).map_err(|error| Error::file(path, error))?;
            (file, if is_stored { declared.unwrap_or(upright) } else { upright })
        }
        _ => {
            let picture = dataset.picture(index)?;
            let (file, [rows, columns]) = (format!("{unique}.png"), picture.size());
            let target = folder.join(&file);
            image::save_buffer(&target, picture.pixels(), columns as u32, rows as u32, image::ColorType::Rgb8)
                .map_err(|error| Error::file(&target, error))?;
            (file, picture.size())
        }
    };
    Ok(Item { file, image_id: dataset.image_id(index), size, annotations, classes: dataset.classes() })
}

/// What formats cannot represent.
#[derive(Default)]
struct Lost {
    boxes: usize,
    areas: usize,
    crowds: usize,
    difficult: usize,
    ids: usize,
    /// Boxes of one pixel.
    points: usize,
}

impl Lost {
    fn count(&mut self, item: &Item<'_>, image_id: u64, place: usize) {
        self.ids += usize::from(image_id != place as u64 + 1);
        for annotation in &item.annotations {
            self.boxes += 1;
            self.areas += usize::from(!is_box_area(annotation));
            self.crowds += usize::from(annotation.crowd);
            self.difficult += usize::from(annotation.difficult);
            self.points += usize::from(annotation.bounds[2..] == [1.0, 1.0]);
        }
    }

    fn texts(&self, format: AnnotationFormat) -> Vec<String> {
        let mut texts = Vec::new();
        let mut lose = |count: usize, what: &str| {
            if count > 0 {
                texts.push(format!("{count} {what}"));
            }
        };
        if format != AnnotationFormat::Coco {
            lose(self.ids, "ids of pictures (numbered anew)");
        }
        if format == AnnotationFormat::Voc {
            lose(self.points, "boxes of one pixel, which VOC writes as boxes without area");
        }
        if format == AnnotationFormat::Yolo {
            lose(self.areas, "areas that are not those of the boxes");
            lose(self.crowds, "marks of crowds: they become plain objects");
            lose(self.difficult, "marks of difficult objects");
        }
        texts
    }
}

fn is_box_area(annotation: &Annotation) -> bool {
    let area = annotation.bounds[2] * annotation.bounds[3];
    (annotation.area - area).abs() <= 1e-9 * area.abs()
}

fn coco(output: &Path, part: &str, items: &[Item<'_>]) -> Result<(), Error> {
    let images: Vec<_> = items
        .iter()
        .map(|item| json!({ "id": item.image_id, "file_name": item.file, "width": item.size[1], "height": item.size[0] }))
        .collect();
    let annotation = |item: &Item<'_>, one: &Annotation| {
        let mut value = json!({
            "id": one.id,
            "image_id": item.image_id,
            "category_id": one.class + 1,
            "bbox": one.bounds,
            "area": one.area,
            "iscrowd": u8::from(one.crowd),
        });
        if one.difficult {
            value["difficult"] = json!(1);
        }
        value
    };
    let annotations: Vec<_> =
        items.iter().flat_map(|item| item.annotations.iter().map(move |one| annotation(item, one))).collect();
    let classes = items.first().map_or(&[][..], |item| item.classes);
    let categories: Vec<_> =
        classes.iter().enumerate().map(|(class, name)| json!({ "id": class + 1, "name": name })).collect();
    let content = json!({ "images": images, "annotations": annotations, "categories": categories });
    let folder = output.join("annotations");
    make(&folder)?;
    write_file(&folder.join(format!("instances_{part}.json")), content.to_string().as_bytes())
}

fn voc(output: &Path, part: &str, items: &[Item<'_>]) -> Result<(), Error> {
    let (folder, lists) = (output.join("Annotations"), output.join("ImageSets").join("Main"));
    make(&folder)?;
    make(&lists)?;
    let mut list = String::new();
    for item in items {
        let [rows, columns] = item.size;
        let mut xml = format!(
            "<annotation>\n  <folder>JPEGImages</folder>\n  <filename>{}</filename>\n  <size>\n    \
             <width>{columns}</width>\n    <height>{rows}</height>\n    <depth>3</depth>\n  </size>\n",
            escape(item.file.as_str())
        );
        for one in &item.annotations {
            let [x, y, w, h] = one.bounds;
            _ = write!(
                xml,
                "  <object>\n    <name>{}</name>\n    <difficult>{}</difficult>\n    <bndbox>\n      \
                 <xmin>{}</xmin>\n      <ymin>{}</ymin>\n      <xmax>{}</xmax>\n      <ymax>{}</ymax>\n    </bndbox>\n",
                escape(item.classes[one.class].as_str()),
                u8::from(one.difficult),
                x + 1.0,
                y + 1.0,
                x + w,
                y + h
            );
            if one.crowd {
                xml.push_str("    <iscrowd>1</iscrowd>\n");
            }
            if !is_box_area(one) {
                _ = writeln!(xml, "    <area>{}</area>", one.area);
            }
            xml.push_str("  </object>\n");
        }
        xml.push_str("</annotation>\n");
        write_file(&folder.join(format!("{}.xml", item.stem())), xml.as_bytes())?;
        list += item.stem();
        list.push('\n');
    }
    write_file(&lists.join(format!("{part}.txt")), list.as_bytes())
}

fn yolo(output: &Path, part: &str, items: &[Item<'_>]) -> Result<(), Error> {
    let folder = output.join("labels").join(part);
    make(&folder)?;
    for item in items {
        let [rows, columns] = item.size.map(|side| side as f64);
        let mut text = String::new();
        for one in &item.annotations {
            let [x, y, w, h] = one.bounds;
            let shares = [(x + w / 2.0) / columns, (y + h / 2.0) / rows, w / columns, h / rows];
            _ = writeln!(text, "{} {} {} {} {}", one.class, shares[0], shares[1], shares[2], shares[3]);
        }
        write_file(&folder.join(format!("{}.txt", item.stem())), text.as_bytes())?;
    }
    Ok(())
}

fn data_yaml(parts: &DetectionParts) -> String {
    let mut text = String::from("path: .\n");
    for (part, name, dataset) in
        [("train", "train", &parts.train), ("val", "val", &parts.validation), ("test", "test", &parts.test)]
    {
        if !dataset.is_empty() {
            _ = writeln!(text, "{part}: images/{name}");
        }
    }
    text.push_str("names:\n");
    for (class, name) in parts.train.classes().iter().enumerate() {
        _ = writeln!(text, "  {class}: '{}'", name.replace('\'', "''"));
    }
    text
}

fn csv_rows(part: &str, items: &[Item<'_>]) -> Vec<Vec<String>> {
    let row = |item: &Item<'_>, one: Option<&Annotation>| {
        let number = |number: f64| number.to_string();
        let mut row = vec![format!("images/{part}/{}", item.file)];
        match one {
            Some(one) => {
                let [x, y, w, h] = one.bounds;
                row.extend([x, y, x + w, y + h].map(number));
                row.extend([item.classes[one.class].clone(), number(one.area)]);
                row.extend([one.crowd, one.difficult].map(|flag| u8::from(flag).to_string()));
            }
            None => row.resize(9, String::new()),
        }
        row.extend([item.size[1].to_string(), item.size[0].to_string(), part.to_string()]);
        row
    };
    let rows = |item: &Item<'_>| {
        if item.annotations.is_empty() {
            return vec![row(item, None)];
        }
        item.annotations.iter().map(|one| row(item, Some(one))).collect()
    };
    items.iter().flat_map(rows).collect()
}

fn csv_table(rows: &[Vec<String>]) -> Result<Vec<u8>, Error> {
    let wrong = |error: String| Error::config("csv", error);
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    let heading = ["image", "x1", "y1", "x2", "y2", "class", "area", "iscrowd", "difficult", "width", "height", "part"];
    writer.write_record(heading).map_err(|error| wrong(error.to_string()))?;
    for row in rows {
        writer.write_record(row).map_err(|error| wrong(error.to_string()))?;
    }
    writer.into_inner().map_err(|error| wrong(error.to_string()))
}
