//! The results of an analysis: text, data, a page, and figures in two formats.

use regard::analyse::Check;
use regard::report::{Figure, Page, PageSection, Table};
use std::io::Write;
use std::path::Path;

use crate::failure::Failure;
use crate::models::print_json;

/// All results of a command.
pub struct Findings {
    pub title: String,
    /// A sentence on the page.
    pub lead: String,
    pub parts: Vec<Part>,
    pub checks: Vec<Check>,
    pub data: serde_json::Value,
}

/// A part of the results under a heading.
pub struct Part {
    pub title: String,
    /// Explains the figures.
    pub text: String,
    /// With the name of its files.
    pub figures: Vec<(String, Box<dyn Figure>)>,
    pub table: Option<Table>,
}

impl Part {
    pub fn new(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self { title: title.into(), text: text.into(), figures: Vec::new(), table: None }
    }

    pub fn figure(mut self, name: impl Into<String>, figure: impl Figure + 'static) -> Self {
        self.figures.push((name.into(), Box::new(figure)));
        self
    }

    pub fn table(self, table: Table) -> Self {
        Self { table: Some(table), ..self }
    }
}

impl Findings {
    /// The tables and the checks, or the data.
    pub fn print(&self, json: bool, out: &mut impl Write) -> Result<(), Failure> {
        if json {
            return print_json(&self.data_with_checks(), out);
        }
        for table in self.parts.iter().filter_map(|part| part.table.as_ref()) {
            writeln!(out, "{}", table.text())?;
        }
        for check in &self.checks {
            writeln!(out, "{check}")?;
        }
        Ok(())
    }

    fn data_with_checks(&self) -> serde_json::Value {
        let mut data = self.data.clone();
        if let Some(fields) = data.as_object_mut() {
            fields.insert("checks".into(), serde_json::json!(self.checks));
        }
        data
    }

    /// Writes the page, and a folder with its data and figures.
    pub fn write(&self, page: &Path, folder: &Path) -> Result<(), Failure> {
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::input(
                format!("cannot make `{}`: {error}", folder.display()),
                "does something else have this name?",
            )
        })?;
        let mut files = vec![(folder.join("data.json"), self.data_with_checks().to_string().into_bytes())];
        for (name, figure) in self.parts.iter().flat_map(|part| &part.figures) {
            files.push((folder.join(format!("{name}.svg")), figure.svg().into_bytes()));
            files.push((folder.join(format!("{name}.png")), figure.png()));
        }
        files.push((page.to_path_buf(), self.page().html().into_bytes()));
        for (path, bytes) in files {
            regard::file::replace(&path, &bytes).map_err(|error| {
                Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable?")
            })?;
        }
        Ok(())
    }

    fn page(&self) -> Page {
        let mut page = Page::new(&self.title).lead(&self.lead);
        for part in &self.parts {
            let mut section = PageSection::new(&part.title);
            if !part.text.is_empty() {
                section = section.text(&part.text);
            }
            for (_, figure) in &part.figures {
                section = section.figure(figure.as_ref());
            }
            if let Some(table) = &part.table {
                section = section.table(table.clone());
            }
            page = page.section(section);
        }
        let mut table = Table::new().words("").words("law").numbers("off by").numbers("allowed");
        for check in &self.checks {
            let verdict = if check.holds() { "ok" } else { "FAILED" };
            table.row([
                verdict.into(),
                check.law.clone(),
                format!("{:.1e}", check.deviation),
                format!("{:.0e}", check.tolerance),
            ]);
        }
        if self.checks.is_empty() { page } else { page.section(PageSection::new("checks").table(table)) }
    }

    /// An error if a check fails.
    pub fn hold(&self) -> Result<(), Failure> {
        match self.checks.iter().find(|check| !check.holds()) {
            Some(check) => Err(Failure::found(
                format!("a result fails its own check: {check}"),
                "do not trust it; please report it",
            )),
            None => Ok(()),
        }
    }
}
