//! Tables as plain text, Markdown or HTML.

use maud::{Markup, html};

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A table with named columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    columns: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a left-aligned column of text.
    #[must_use]
    pub fn words(mut self, name: impl Into<String>) -> Self {
        self.columns.push((name.into(), Side::Left));
        self
    }

    /// Adds a right-aligned column of numbers.
    #[must_use]
    pub fn numbers(mut self, name: impl Into<String>) -> Self {
        self.columns.push((name.into(), Side::Right));
        self
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When the number of cells is not the number of columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert!(cells.len() == self.columns.len(), "table: {} cells for {} columns", cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Plain text, columns two spaces apart.
    #[must_use]
    pub fn text(&self) -> String {
        let clean = |cell: &str| cell.replace(char::is_control, " ");
        let lines = self.lines(clean);
        let widths = self.widths(&lines);
        let line = |cells: &Vec<String>| {
            let cells: Vec<String> = self.padded(cells, &widths);
            cells.join("  ").trim_end().to_string() + "\n"
        };
        lines.iter().map(line).collect()
    }

    /// GitHub Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let lines = self.lines(markdown_cell);
        let widths: Vec<usize> = self.widths(&lines).into_iter().map(|width| width.max(3)).collect();
        let line = |cells: &Vec<String>| format!("| {} |\n", self.padded(cells, &widths).join(" | "));
        let rule = self.columns.iter().zip(&widths).map(|((_, side), width)| match side {
            Side::Left => "-".repeat(*width),
            Side::Right => "-".repeat(width - 1) + ":",
        });
        let rule = line(&rule.collect());
        let mut lines: Vec<String> = lines.iter().map(line).collect();
        lines.insert(1, rule);
        lines.concat()
    }

    /// An HTML `table` that scrolls horizontally.
    pub(super) fn html(&self) -> Markup {
        let class = |column: usize| (self.columns[column].1 == Side::Right).then_some("number");
        html! {
            div.scroll {
                table {
                    thead { tr { @for (column, (name, _)) in self.columns.iter().enumerate() { th class=[class(column)] { (name) } } } }
                    tbody {
                        @for row in &self.rows {
                            tr { @for (column, cell) in row.iter().enumerate() { td class=[class(column)] { (cell) } } }
                        }
                    }
                }
            }
        }
    }

    /// The names of the columns and then the rows.
    fn lines(&self, cell: impl Fn(&str) -> String) -> Vec<Vec<String>> {
        let names = self.columns.iter().map(|(name, _)| cell(name)).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(|text| cell(text)).collect());
        [names].into_iter().chain(rows).collect()
    }

    fn widths(&self, lines: &[Vec<String>]) -> Vec<usize> {
        let widest = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
        (0..self.columns.len()).map(widest).collect()
    }

    fn padded(&self, cells: &[String], widths: &[usize]) -> Vec<String> {
        let pad = |((cell, width), (_, side)): ((&String, &usize), &(String, Side))| match side {
            Side::Left => format!("{cell:<width$}"),
            Side::Right => format!("{cell:>width$}"),
        };
        cells.iter().zip(widths).zip(&self.columns).map(pad).collect()
    }
}

/// One line with Markdown syntax escaped.
fn markdown_cell(text: &str) -> String {
    let mut cell = String::new();
    for letter in text.chars() {
        match letter {
            '\\' | '|' | '<' | '*' | '`' | '[' => cell.extend(['\\', letter]),
            letter if letter.is_control() => cell.push(' '),
            letter => cell.push(letter),
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new().words("model").numbers("top-1");
        table.row(["vit-nano", "81.5"]);
        table.row(["a|b <i>", "9.25"]);
        table
    }

    #[test]
    fn words_keep_left_and_numbers_keep_right() {
        assert_eq!(table().text(), "model     top-1\nvit-nano   81.5\na|b <i>    9.25\n");
    }

    #[test]
    fn markdown_has_a_rule_and_no_cell_breaks_the_table() {
        let expected = "| model     | top-1 |\n| --------- | ----: |\n| vit-nano  |  81.5 |\n| a\\|b \\<i> |  9.25 |\n";
        assert_eq!(table().markdown(), expected);
        assert_eq!(markdown_cell("a\nb\\|"), "a b\\\\\\|");
    }

    #[test]
    fn html_is_escaped_and_marks_numbers() {
        let html = table().html().into_string();
        assert!(html.contains("<td>a|b &lt;i&gt;</td><td class=\"number\">9.25</td>"), "{html}");
    }

    #[test]
    #[should_panic(expected = "table: 1 cells for 2 columns")]
    fn a_row_of_another_length_is_a_bug() {
        table().row(["alone"]);
    }
}
