//! Tensors as the Open Inference Protocol has them: JSON, or JSON followed by the numbers as bytes.
//!
//! The binary form is Triton's extension, which its clients use unless told otherwise: the header
//! `Inference-Header-Content-Length` says where the JSON ends, and each tensor how many bytes it has after that.

use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The header that says how long the JSON is.
pub const HEADER: &str = "inference-header-content-length";

/// A request for an inference.
#[derive(Debug, Deserialize)]
pub struct Inference {
    #[serde(default)]
    pub id: Option<String>,
    pub inputs: Vec<Input>,
    #[serde(default)]
    outputs: Vec<Wanted>,
    #[serde(default)]
    parameters: Parameters,
}

/// A tensor that was sent.
#[derive(Debug, Deserialize)]
pub struct Input {
    pub name: String,
    pub shape: Vec<u64>,
    pub datatype: String,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default)]
    pub data: Data,
}

#[derive(Debug, Deserialize)]
struct Wanted {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Debug, Default, Deserialize)]
struct Parameters {
    /// Bytes of a tensor behind the JSON.
    #[serde(rename = "binary_data_size")]
    size: Option<usize>,
    /// Whether an output should come as bytes.
    #[serde(rename = "binary_data")]
    bytes: Option<bool>,
    /// Whether all of them should.
    #[serde(rename = "binary_data_output")]
    all_bytes: Option<bool>,
}

/// What is in a tensor, in the order of its rows, nested or not.
#[derive(Debug, Default, PartialEq)]
pub struct Data {
    pub numbers: Vec<f32>,
    pub texts: Vec<String>,
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut data = Self::default();
        Filling(&mut data).deserialize(deserializer)?;
        Ok(data)
    }
}

/// Puts whatever comes at the end of the data.
struct Filling<'a>(&'a mut Data);

impl<'de> DeserializeSeed<'de> for Filling<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Filling<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers or texts, in lists")
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        let number = number as f32;
        if !number.is_finite() {
            return Err(E::custom("a number is too large"));
        }
        self.0.numbers.push(number);
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.0.texts.push(text.into());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Filling(self.0))?.is_some() {}
        if !self.0.numbers.is_empty() && !self.0.texts.is_empty() {
            return Err(A::Error::custom("numbers and texts in one tensor"));
        }
        Ok(())
    }
}

impl Inference {
    /// Reads a request; `json` is where its JSON ends, when bytes of tensors follow.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn read(body: &[u8], json: Option<usize>) -> Result<Self, String> {
        let json = json.unwrap_or(body.len());
        let (head, mut rest) = body
            .split_at_checked(json)
            .ok_or_else(|| format!("the header says {json} bytes of JSON, the body has {}", body.len()))?;
        let mut request: Self = serde_json::from_slice(head).map_err(|error| format!("not an inference: {error}"))?;
        for input in &mut request.inputs {
            let Some(size) = input.parameters.size else { continue };
            let (bytes, others) = rest
                .split_at_checked(size)
                .ok_or_else(|| format!("`{}` has {size} bytes, {} are left", input.name, rest.len()))?;
            input.data =
                Data::of_bytes(&input.datatype, bytes).map_err(|reason| format!("`{}`: {reason}", input.name))?;
            rest = others;
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes after the last tensor", rest.len()));
        }
        Ok(request)
    }

    /// The only input, which has to be of this name and type.
    ///
    /// # Errors
    /// When it is not.
    pub fn only(&self, name: &str, datatype: &str) -> Result<&Input, String> {
        let [input] = self.inputs.as_slice() else {
            return Err(format!("{} inputs, the model takes one, `{name}`", self.inputs.len()));
        };
        if input.name != name {
            return Err(format!("no input `{}`, the model takes `{name}`", input.name));
        }
        if input.datatype != datatype {
            return Err(format!("`{name}` of {}, the model takes {datatype}", input.datatype));
        }
        Ok(input)
    }
}

impl Data {
    fn of_bytes(datatype: &str, bytes: &[u8]) -> Result<Self, String> {
        match datatype {
            "FP32" => {
                let (numbers, []) = bytes.as_chunks::<4>() else {
                    return Err(format!("{} bytes are no whole number of FP32", bytes.len()));
                };
                let numbers: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                if numbers.iter().any(|number| !number.is_finite()) {
                    return Err("a number is infinite or none".into());
                }
                Ok(Self { numbers, texts: Vec::new() })
            }
            "BYTES" => {
                let (mut texts, mut rest) = (Vec::new(), bytes);
                while let Some((length, after)) = rest.split_first_chunk::<4>() {
                    let length = u32::from_le_bytes(*length) as usize;
                    let (text, after) = after.split_at_checked(length).ok_or("a text ends before it should")?;
                    texts.push(String::from_utf8(text.to_vec()).map_err(|_| "a text is not UTF-8")?);
                    rest = after;
                }
                if rest.is_empty() { Ok(Self { numbers: Vec::new(), texts }) } else { Err("half a length".into()) }
            }
            other => Err(format!("bytes of type {other}, known are FP32 and BYTES")),
        }
    }
}

/// A tensor to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub data: Sent,
}

/// What is in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Sent {
    Numbers(Vec<f32>),
    Texts(Vec<String>),
}

impl Sent {
    const fn datatype(&self) -> &'static str {
        match self {
            Self::Numbers(_) => "FP32",
            Self::Texts(_) => "BYTES",
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Numbers(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Self::Texts(texts) => {
                texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect()
            }
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<Told<'a>>,
}

#[derive(Serialize)]
struct Told<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Sent>,
}

#[derive(Serialize)]
struct Size {
    binary_data_size: usize,
}

/// An answer: its bytes, and how many of them are JSON when others follow.
#[derive(Debug)]
pub struct Reply {
    pub body: Vec<u8>,
    pub json: Option<usize>,
}

impl Inference {
    /// The tensors that were asked for, all of them when none is named, each in the form that was asked for.
    ///
    /// # Errors
    /// When one was asked for that there is not.
    pub fn reply(&self, model: &str, outputs: &[Output]) -> Result<Reply, String> {
        let chosen: Vec<(&Output, Option<bool>)> = if self.outputs.is_empty() {
            outputs.iter().map(|output| (output, None)).collect()
        } else {
            let find = |wanted: &Wanted| {
                let found = outputs.iter().find(|output| output.name == wanted.name);
                let known = || outputs.iter().map(|output| output.name).collect::<Vec<_>>().join(", ");
                let found = found.ok_or_else(|| format!("no output `{}`; there are: {}", wanted.name, known()))?;
                Ok((found, wanted.parameters.bytes))
            };
            self.outputs.iter().map(find).collect::<Result<_, String>>()?
        };
        let (mut bytes, mut told) = (Vec::new(), Vec::new());
        for (Output { name, shape, data }, binary) in chosen {
            let binary = binary.or(self.parameters.all_bytes).unwrap_or(false).then(|| data.bytes());
            let parameters = binary.as_ref().map(|own| Size { binary_data_size: own.len() });
            let data_told = binary.is_none().then_some(data);
            told.push(Told { name, shape, datatype: data.datatype(), parameters, data: data_told });
            bytes.extend(binary.unwrap_or_default());
        }
        let answer = Answer { model_name: model, id: self.id.as_deref(), outputs: told };
        let mut body = serde_json::to_vec(&answer).expect("an answer is plain data");
        let json = (!bytes.is_empty()).then_some(body.len());
        body.extend(bytes);
        Ok(Reply { body, json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(text: &str) -> Result<Inference, String> {
        Inference::read(text.as_bytes(), None)
    }

    #[test]
    fn nested_and_flat_lists_are_the_same_tensor() {
        let of = |data: &str| {
            let text = format!(r#"{{"inputs":[{{"name":"x","shape":[2,2],"datatype":"FP32","data":{data}}}]}}"#);
            read(&text).map(|request| request.inputs.into_iter().next().unwrap().data)
        };
        assert_eq!(of("[1,2.5,-3,4e-1]").unwrap().numbers, [1.0, 2.5, -3.0, 0.4]);
        assert_eq!(of("[[1,2.5],[-3,4e-1]]").unwrap(), of("[1,2.5,-3,4e-1]").unwrap());
        assert_eq!(of(r#"[["a"],["b"]]"#).unwrap().texts, ["a", "b"]);
        for wrong in ["[1,\"a\"]", "[null]", "[1e300]", "{}", "[[1]", "[true]"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let deep = "[".repeat(100_000);
        assert!(of(&deep).is_err());
    }

    #[test]
    fn numbers_that_follow_the_json_are_those_of_the_tensors_in_turn() {
        let json = r#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}},
            {"name":"t","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6}}]}"#;
        let mut body = json.as_bytes().to_vec();
        body.extend([1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()));
        body.extend([2, 0, 0, 0, b'h', b'i']);
        let request = Inference::read(&body, Some(json.len())).unwrap();
        assert_eq!(request.inputs[0].data.numbers, [1.5, -2.0]);
        assert_eq!(request.inputs[1].data.texts, ["hi"]);
        let wrong = |body: &[u8], json| Inference::read(body, Some(json)).unwrap_err();
        assert!(wrong(&body[..body.len() - 1], json.len()).contains("`t` has 6 bytes, 5 are left"));
        assert!(wrong(&[&body[..], b"x"].concat(), json.len()).contains("1 bytes after"));
        assert!(wrong(&body, body.len() + 1).contains("the header says"));
        let mut infinite = body.clone();
        infinite[json.len()..json.len() + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert!(wrong(&infinite, json.len()).contains("infinite"));
    }

    #[test]
    fn an_answer_has_what_was_asked_for_in_the_form_that_was_asked_for() {
        let outputs = [
            Output { name: "logits", shape: vec![1, 2], data: Sent::Numbers(vec![0.5, 1.0]) },
            Output { name: "text", shape: vec![1], data: Sent::Texts(vec!["à".into()]) },
        ];
        let all = read(r#"{"id":"7","inputs":[]}"#).unwrap().reply("m", &outputs).unwrap();
        let told: Value = serde_json::from_slice(&all.body).unwrap();
        assert_eq!((all.json, &told["id"], &told["model_name"]), (None, &json!("7"), &json!("m")));
        assert_eq!(told["outputs"][0]["data"], json!([0.5, 1.0]));
        assert_eq!(told["outputs"][1]["data"], json!(["à"]));
        let wanted = r#"{"inputs":[],"outputs":[{"name":"text","parameters":{"binary_data":true}},{"name":"logits"}]}"#;
        let one = read(wanted).unwrap().reply("m", &outputs).unwrap();
        let (head, bytes) = one.body.split_at(one.json.unwrap());
        let told: Value = serde_json::from_slice(head).unwrap();
        assert_eq!(told["outputs"][0]["parameters"]["binary_data_size"], 6);
        assert_eq!(bytes, [2, 0, 0, 0, 0xc3, 0xa0]);
        assert!(told["outputs"][1]["data"].is_array());
        let unknown = read(r#"{"inputs":[],"outputs":[{"name":"boxes"}]}"#).unwrap();
        assert!(unknown.reply("m", &outputs).err().unwrap().contains("logits, text"));
    }
}
