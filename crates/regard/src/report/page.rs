//! Self-contained HTML pages; all text is escaped.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figure::Figure;
use super::table::Table;

/// A page of sections.
#[derive(Clone, Debug, Default)]
pub struct Page {
    title: String,
    lead: String,
    sections: Vec<PageSection>,
}

/// A section of a page under a heading.
#[derive(Clone, Debug, Default)]
pub struct PageSection {
    title: String,
    parts: Vec<PageElement>,
}

#[derive(Clone, Debug)]
enum PageElement {
    Text(String),
    Code { summary: Option<String>, text: String },
    Facts(Vec<(String, String)>),
    Table(Table),
    Figure(String),
    Pictures(Vec<PageImage>),
}

/// An image in a row of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageImage {
    /// The bytes of a PNG file.
    pub png: Vec<u8>,
    /// Alternative text.
    pub description: String,
    /// Caption.
    pub caption: String,
}

impl Page {
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// A sentence below the title.
    #[must_use]
    pub fn lead(mut self, text: impl Into<String>) -> Self {
        self.lead = text.into();
        self
    }

    /// Adds a section, unless it is empty.
    #[must_use]
    pub fn section(mut self, section: PageSection) -> Self {
        if !section.parts.is_empty() {
            self.sections.push(section);
        }
        self
    }

    /// The whole file.
    #[must_use]
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                (head(&self.title, STYLE))
                body {
                    main {
                        h1 { (self.title) }
                        @if !self.lead.is_empty() { p.lead { (self.lead) } }
                        @for section in &self.sections { (section.html()) }
                    }
                }
            }
        };
        page.into_string()
    }
}

/// The head of every page: no external resources, responsive, light or dark as the reader prefers.
pub(super) fn head(title: &str, style: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) }
            style { (PreEscaped(style)) }
        }
    }
}

impl PageSection {
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), parts: Vec::new() }
    }

    /// A paragraph.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.with(PageElement::Text(text.into()))
    }

    /// Preformatted text.
    #[must_use]
    pub fn code(self, text: impl Into<String>) -> Self {
        self.with(PageElement::Code { summary: None, text: text.into() })
    }

    /// Preformatted text, folded under a summary.
    #[must_use]
    pub fn folded(self, summary: impl Into<String>, text: impl Into<String>) -> Self {
        self.with(PageElement::Code { summary: Some(summary.into()), text: text.into() })
    }

    /// Names with values; nothing if there are none.
    #[must_use]
    pub fn facts(self, facts: Vec<(String, String)>) -> Self {
        if facts.is_empty() { self } else { self.with(PageElement::Facts(facts)) }
    }

    #[must_use]
    pub fn table(self, table: Table) -> Self {
        self.with(PageElement::Table(table))
    }

    #[must_use]
    pub fn figure(self, figure: &(impl Figure + ?Sized)) -> Self {
        self.with(PageElement::Figure(figure.svg()))
    }

    /// Images side by side; nothing if there are none.
    #[must_use]
    pub fn pictures(self, pictures: Vec<PageImage>) -> Self {
        if pictures.is_empty() { self } else { self.with(PageElement::Pictures(pictures)) }
    }

    fn with(mut self, part: PageElement) -> Self {
        self.parts.push(part);
        self
    }

    fn html(&self) -> Markup {
        html! {
            section {
                h2 { (self.title) }
                @for part in &self.parts { (part.html()) }
            }
        }
    }
}

impl PageElement {
    fn html(&self) -> Markup {
        match self {
            Self::Text(text) => html! { p { (text) } },
            Self::Code { summary: None, text } => html! { pre { code { (text) } } },
            Self::Code { summary: Some(summary), text } => html! {
                details { summary { (summary) } pre { code { (text) } } }
            },
            Self::Facts(facts) => html! {
                dl { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } }
            },
            Self::Table(table) => table.html(),
            // figures are already escaped
            Self::Figure(svg) => html! { figure.card { (PreEscaped(svg)) } },
            Self::Pictures(pictures) => html! {
                div.pictures { @for picture in pictures { (picture.html()) } }
            },
        }
    }
}

impl PageImage {
    fn html(&self) -> Markup {
        html! {
            figure {
                img src={ "data:image/png;base64," (STANDARD.encode(&self.png)) } alt=(self.description);
                @if !self.caption.is_empty() { figcaption { (self.caption) } }
            }
        }
    }
}

const STYLE: &str = "
:root { --ink: #222; --faded: #595959; --paper: #f7f7f5; --raised: #fff; --rule: #ddd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --faded: #a8a8a8; --paper: #16181b; --raised: #1f2226; --rule: #3a3f45; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .7rem; padding-bottom: .25rem; border-bottom: 1px solid var(--rule); }
.lead { color: var(--faded); margin: 0; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: .1rem 2rem; margin: 0 0 1rem; }
dl div { display: flex; justify-content: space-between; gap: 1rem; border-bottom: 1px solid var(--rule); padding: .2rem 0; }
dt { color: var(--faded); flex: none; }
dd { margin: 0; text-align: right; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
pre { background: var(--raised); border: 1px solid var(--rule); border-radius: 6px; padding: .8rem; overflow-x: auto; font-size: .85rem; }
details { margin: 0 0 1rem; }
summary { cursor: pointer; color: var(--faded); }
.scroll { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--faded); font-weight: 600; }
.number { text-align: right; }
figure { margin: 0 0 1rem; }
.card { overflow-x: auto; padding: 1px; }
.card svg { display: block; border-radius: 6px; box-shadow: 0 0 0 1px var(--rule); }
@media (max-width: 40rem) { .card svg { min-width: 36rem; } }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; }
.pictures figure { margin: 0; max-width: 100%; }
img { display: block; max-width: 100%; image-rendering: pixelated; border-radius: 4px; }
figcaption { color: var(--faded); font-size: .85rem; }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figure::{Bar, Bars};

    fn page(text: &str) -> String {
        let mut table = Table::new().words(text);
        table.row([text]);
        let bars = Bars {
            title: text.into(),
            x: text.into(),
            decimals: 0,
            bars: vec![Bar { name: text.into(), value: 1.0, deviation: None }],
        };
        let picture = PageImage { png: vec![1, 2, 3], description: text.into(), caption: text.into() };
        Page::new(text)
            .lead(text)
            .section(
                PageSection::new(text)
                    .text(text)
                    .code(text)
                    .folded(text, text)
                    .facts(vec![(text.into(), text.into())])
                    .table(table)
                    .figure(&bars)
                    .pictures(vec![picture]),
            )
            .html()
    }

    #[test]
    fn whatever_is_written_stays_text() {
        let html = page("<b>\"&'");
        assert_eq!(html.matches("<b>").count(), 0);
        assert_eq!(html.matches("&lt;b&gt;&quot;&amp;").count(), 18, "every place shows the text");
    }

    #[test]
    fn nothing_is_fetched_from_elsewhere() {
        let html = page("x").replace("http://www.w3.org/2000/svg", "");
        for way in ["http", "src=\"/", "href", "@import", "url(", "<script"] {
            assert!(!html.contains(way), "{way}");
        }
        assert!(html.contains("src=\"data:image/png;base64,AQID\""));
    }

    #[test]
    fn a_section_with_nothing_in_it_is_left_out() {
        let html = Page::new("a").section(PageSection::new("nothing here").facts(vec![]).pictures(vec![])).html();
        assert!(!html.contains("nothing here"));
    }
}
