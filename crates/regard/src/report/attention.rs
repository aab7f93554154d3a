//! The attention of a translator: an interactive page, its data, and the alignment.

use maud::{DOCTYPE, PreEscaped, html};
use serde::{Deserialize, Serialize};

use super::figure::{ColourScale, Figure as _, HeatMap};
use super::page::head;
use crate::Error;
use crate::translate::TranslationAttention;

/// All attention weights of one translation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionReport {
    pub text: String,
    pub translation: String,
    /// The source tokens.
    pub source: Vec<String>,
    /// The input token of each decoding step.
    pub target: Vec<String>,
    pub layers: Vec<AttentionLayer>,
}

/// The weights of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionLayer {
    /// The recorded name, such as `decoder.layers.0.multihead_attn`.
    pub name: String,
    pub kind: AttentionKind,
    /// `[head][query][key]`
    pub heads: Vec<Vec<Vec<f32>>>,
}

/// The kind of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionKind {
    /// Encoder self-attention.
    Encoder,
    /// Decoder self-attention.
    Decoder,
    /// Cross-attention.
    Cross,
}

impl AttentionKind {
    /// The kind of a recorded name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            name if name.starts_with("encoder.") => Self::Encoder,
            name if name.contains("self_attn") => Self::Decoder,
            _ => Self::Cross,
        }
    }
}

impl AttentionReport {
    /// From what was recorded during a translation.
    ///
    /// # Errors
    /// When the recorded tensors are not weights by head.
    pub fn of(text: &str, translation: &str, attended: TranslationAttention) -> Result<Self, Error> {
        let TranslationAttention { source, target, trace } = attended;
        let mut layers = Vec::new();
        for name in trace.names() {
            let weights = trace.get::<4>(name)?;
            let [_, _, queries, keys] = weights.dims();
            let values: Vec<f32> = weights.into_data().iter::<f32>().collect();
            let heads = values.chunks(queries * keys).map(|head| head.chunks(keys).map(<[f32]>::to_vec).collect());
            let name = name.trim_end_matches(".weights").to_string();
            layers.push(AttentionLayer { kind: AttentionKind::of(&name), name, heads: heads.collect() });
        }
        Ok(Self { text: text.into(), translation: translation.into(), source, target, layers })
    }

    /// The queries and the keys.
    #[must_use]
    pub fn words(&self, kind: AttentionKind) -> [&[String]; 2] {
        match kind {
            AttentionKind::Encoder => [&self.source, &self.source],
            AttentionKind::Decoder => [&self.target, &self.target],
            AttentionKind::Cross => [&self.target, &self.source],
        }
    }

    /// The alignment of target and source: the mean of all cross-attention heads.
    #[must_use]
    pub fn alignment(&self) -> HeatMap {
        let heads: Vec<&Vec<Vec<f32>>> = self
            .layers
            .iter()
            .filter(|layer| layer.kind == AttentionKind::Cross)
            .flat_map(|layer| &layer.heads)
            .collect();
        let mean = |row: usize, column: usize| {
            heads.iter().map(|head| f64::from(head[row][column])).sum::<f64>() / heads.len() as f64
        };
        // a token was written by the step of the row before it
        let written = self.target.iter().skip(1).cloned().chain(["</s>".to_string()]).collect::<Vec<_>>();
        let rows = 0..self.target.len();
        HeatMap {
            title: "alignment".into(),
            row_label: "written".into(),
            column_label: "read".into(),
            values: rows.map(|row| (0..self.source.len()).map(|column| mean(row, column)).collect()).collect(),
            rows: written.iter().map(|token| shown(token)).collect(),
            columns: self.source.iter().map(|token| shown(token)).collect(),
            decimals: 2,
            shades: ColourScale::Root,
        }
    }

    /// The data as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }

    /// The page as one self-contained file.
    #[must_use]
    pub fn html(&self) -> String {
        // `</script>` in a sentence must not end the script
        let data = self.json().replace('<', "\\u003c");
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                (head(&format!("attention: {}", self.text), STYLE))
                body {
                    main {
                        h1 { (self.text) }
                        p.lead { (self.translation) }
                        p { "Point at a word, or move to it with the tab key: the darker another word, the more it is looked at." }
                        div.choices {
                            label { "attention " select id="layer" {} }
                            label { "head " select id="head" {} }
                        }
                        noscript { p { "Without scripts the page shows the alignment alone." } }
                        h2 id="queries-title" {}
                        p.words id="queries" {}
                        h2 id="keys-title" {}
                        p.words id="keys" {}
                        h2 { "alignment" }
                        figure { (PreEscaped(self.alignment().svg())) }
                    }
                    script type="application/json" id="data" { (PreEscaped(data)) }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        page.into_string()
    }
}

/// A token for display.
fn shown(token: &str) -> String {
    token.trim_start_matches('▁').to_string()
}

const STYLE: &str = "
:root { color-scheme: light dark; font: 17px/1.5 system-ui, sans-serif; }
body { margin: 0; } main { max-width: 60rem; margin: auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1rem; margin: 1.5rem 0 .3rem; } .lead { font-size: 1.2rem; margin: .2rem 0 1rem; }
.choices { display: flex; flex-wrap: wrap; gap: 1rem; } select { font: inherit; }
.words { display: flex; flex-wrap: wrap; gap: .3rem; margin: 0; }
.words span { padding: .15rem .4rem; border-radius: .3rem; border: 1px solid #8886; }
#queries span { cursor: pointer; } #queries span.chosen { outline: 3px solid #0072b2; }
figure { margin: 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
";

const SCRIPT: &str = "
const data = JSON.parse(document.getElementById('data').textContent);
const layer = document.getElementById('layer'), head = document.getElementById('head');
const kinds = { encoder: ['source', 'source'], decoder: ['target', 'target'], cross: ['target', 'source'] };
const titles = { source: 'read', target: 'written' };
const words = { encoder: 'encoder self-attention', decoder: 'decoder self-attention', cross: 'cross-attention' };
let chosen = 0;
const counts = {};
data.layers.forEach((one, index) => {
  counts[one.kind] = (counts[one.kind] || 0) + 1;
  layer.add(new Option(words[one.kind] + ', layer ' + counts[one.kind], index));
});
function heads() {
  head.length = 0;
  head.add(new Option('mean of all', -1));
  data.layers[layer.value].heads.forEach((_, index) => head.add(new Option(index + 1, index)));
}
function row() {
  const all = data.layers[layer.value].heads;
  if (head.value >= 0) return all[head.value][chosen];
  return all[0][chosen].map((_, key) => all.reduce((sum, one) => sum + one[chosen][key], 0) / all.length);
}
function fill(place, tokens, make) {
  place.replaceChildren(...tokens.map((token, index) => {
    const span = document.createElement('span');
    span.textContent = token.replace(/^\\u2581/, '') || token;
    make(span, index);
    return span;
  }));
}
function paint() {
  const weights = row(), most = Math.max(...weights, 1e-9);
  document.querySelectorAll('#queries span').forEach((span, index) => span.classList.toggle('chosen', index === chosen));
  document.querySelectorAll('#keys span').forEach((span, index) => {
    const weight = weights[index] || 0;
    span.style.background = 'rgb(230 159 0 / ' + (weight / most).toFixed(3) + ')';
    span.title = (100 * weight).toFixed(1) + ' %';
  });
}
function show() {
  const [from, to] = kinds[data.layers[layer.value].kind];
  chosen = Math.min(chosen, data[from].length - 1);
  document.getElementById('queries-title').textContent = titles[from] + ': these look';
  document.getElementById('keys-title').textContent = titles[to] + ': these are looked at';
  fill(document.getElementById('queries'), data[from], (span, index) => {
    span.tabIndex = 0;
    const choose = () => { chosen = index; paint(); };
    span.onmouseenter = choose; span.onfocus = choose; span.onclick = choose;
  });
  fill(document.getElementById('keys'), data[to], () => {});
  paint();
}
layer.onchange = () => { heads(); show(); };
head.onchange = paint;
if (data.layers.length) { layer.value = data.layers.findLastIndex(one => one.kind === 'cross'); if (layer.value === '') layer.value = 0; heads(); show(); }
";

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> AttentionReport {
        let layer = |name: &str, rows: usize, columns: usize| {
            let row = |row: usize| (0..columns).map(|column| if column == row % columns { 1.0 } else { 0.0 }).collect();
            let head: Vec<Vec<f32>> = (0..rows).map(row).collect();
            AttentionLayer { name: name.into(), kind: AttentionKind::of(name), heads: vec![head.clone(), head] }
        };
        AttentionReport {
            text: "Io <b>la</b> sto </script>".into(),
            translation: "I & it".into(),
            source: ["▁Io", "▁</script>", "</s>"].map(String::from).into(),
            target: ["<s>", "▁I"].map(String::from).into(),
            layers: vec![
                layer("encoder.layers.0.self_attn", 3, 3),
                layer("decoder.layers.0.self_attn", 2, 2),
                layer("decoder.layers.0.multihead_attn", 2, 3),
            ],
        }
    }

    #[test]
    fn a_page_holds_its_data_and_nothing_of_a_sentence_is_taken_for_markup() {
        let html = report().html();
        assert_eq!(html.matches("</script>").count(), 2);
        assert!(!html.contains("<b>la</b>") && html.contains("&lt;b&gt;"));
        assert!(!html.contains("src=") && !html.contains("href="), "nothing is fetched");
        let start = html.find("id=\"data\">").unwrap() + "id=\"data\">".len();
        let end = start + html[start..].find("</script>").unwrap();
        let read: AttentionReport = serde_json::from_str(&html[start..end]).unwrap();
        assert_eq!(read, report());
    }

    #[test]
    fn kinds_are_known_by_name_and_have_their_words() {
        let kinds: Vec<AttentionKind> = report().layers.iter().map(|layer| layer.kind).collect();
        assert_eq!(kinds, [AttentionKind::Encoder, AttentionKind::Decoder, AttentionKind::Cross]);
        assert_eq!(AttentionKind::of("decoder.attention"), AttentionKind::Cross);
        assert_eq!(report().words(AttentionKind::Cross).map(<[String]>::len), [2, 3]);
    }

    #[test]
    fn the_alignment_is_of_what_was_written_against_what_was_read() {
        let map = report().alignment();
        assert_eq!(
            (map.rows, map.columns),
            (vec!["I".to_string(), "</s>".into()], vec!["Io".to_string(), "</script>".into(), "</s>".into()])
        );
        assert_eq!(map.values[1], [0.0, 1.0, 0.0]);
    }
}
