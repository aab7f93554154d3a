//! Tensors of the Open Inference Protocol: JSON, or JSON followed by binary data.
//!
//! The binary form is Triton's extension, the default of its clients: the header
//! `Inference-Header-Content-Length` says where the JSON ends, and each tensor how many bytes it has after that.

use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The header that says how long the JSON is.
pub const HEADER: &str = "inference-header-content-length";

/// Maximum number of texts per tensor: an empty text takes eight times the memory of its JSON.
const MOST_TEXTS: usize = 1 << 16;

/// A request for an inference.
#[derive(Debug, Deserialize)]
pub struct InferRequest {
    #[serde(default)]
    pub id: Option<String>,
    pub inputs: Vec<Input>,
    #[serde(default)]
    outputs: Vec<RequestedOutput>,
    #[serde(default)]
    parameters: Parameters,
}

/// An input tensor.
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
struct RequestedOutput {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Debug, Default, Deserialize)]
struct Parameters {
    /// Number of bytes of a tensor after the JSON.
    #[serde(rename = "binary_data_size")]
    size: Option<usize>,
    /// Whether an output should be binary.
    #[serde(rename = "binary_data")]
    bytes: Option<bool>,
    /// Whether all outputs should be binary.
    #[serde(rename = "binary_data_output")]
    all_bytes: Option<bool>,
}

/// The data of a tensor in row-major order, nested or flat.
#[derive(Debug, Default, PartialEq)]
pub struct Data {
    pub numbers: Vec<f32>,
    pub texts: Vec<String>,
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut data = Self::default();
        DataVisitor(&mut data).deserialize(deserializer)?;
        Ok(data)
    }
}

/// Appends to the data.
struct DataVisitor<'a>(&'a mut Data);

impl<'de> DeserializeSeed<'de> for DataVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DataVisitor<'_> {
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
        if self.0.texts.len() == MOST_TEXTS {
            return Err(E::custom(format!("more than {MOST_TEXTS} texts")));
        }
        self.0.texts.push(text.into());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(DataVisitor(self.0))?.is_some() {}
        if !self.0.numbers.is_empty() && !self.0.texts.is_empty() {
            return Err(A::Error::custom("numbers and texts in one tensor"));
        }
        Ok(())
    }
}

impl InferRequest {
    /// Reads a request; `json` is where its JSON ends, when bytes of tensors follow.
    ///
    /// # Errors
    /// Why it is invalid.
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

    /// The only input, which must have this name and type.
    ///
    /// # Errors
    /// When it does not.
    pub fn only(&mut self, name: &str, datatype: &str) -> Result<&mut Input, String> {
        let count = self.inputs.len();
        let [input] = self.inputs.as_mut_slice() else {
            return Err(format!("{count} inputs, the model takes one, `{name}`"));
        };
        if input.name != name {
            return Err(format!("no input `{}`, the model takes `{name}`", input.name));
        }
        check_type(input, datatype)?;
        Ok(input)
    }

    /// The inputs of these names and types, in this order, of which none may be missing, and no other.
    ///
    /// # Errors
    /// When they are others.
    pub fn exactly<const N: usize>(&mut self, expected: [(&str, &str); N]) -> Result<[&mut Input; N], String> {
        let names = expected.map(|(name, _)| name);
        if let Some(other) = self.inputs.iter().find(|input| !names.contains(&input.name.as_str())) {
            return Err(format!("no input `{}`, the model takes {}", other.name, names.join(", ")));
        }
        let mut places = [0; N];
        for (place, (name, datatype)) in places.iter_mut().zip(expected) {
            let mut found = (0..self.inputs.len()).filter(|index| self.inputs[*index].name == name);
            *place = found.next().ok_or_else(|| format!("`{name}` is missing"))?;
            if found.next().is_some() {
                return Err(format!("`{name}` is given twice"));
            }
            check_type(&self.inputs[*place], datatype)?;
        }
        Ok(self.inputs.get_disjoint_mut(places).expect("each name has a place of its own"))
    }
}

fn check_type(input: &Input, datatype: &str) -> Result<(), String> {
    if input.datatype == datatype {
        return Ok(());
    }
    Err(format!("`{}` of {}, the model takes {datatype}", input.name, input.datatype))
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
                    if texts.len() == MOST_TEXTS {
                        return Err(format!("more than {MOST_TEXTS} texts"));
                    }
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

/// An output tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub data: OutputData,
}

/// Its data.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OutputData {
    Numbers(Vec<f32>),
    Integers(Vec<i64>),
    Texts(Vec<String>),
}

impl OutputData {
    const fn datatype(&self) -> &'static str {
        match self {
            Self::Numbers(_) => "FP32",
            Self::Integers(_) => "INT64",
            Self::Texts(_) => "BYTES",
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Numbers(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Self::Integers(integers) => integers.iter().flat_map(|integer| integer.to_le_bytes()).collect(),
            Self::Texts(texts) => {
                texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect()
            }
        }
    }
}

#[derive(Serialize)]
struct InferResponse<'a> {
    model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<OutputJson<'a>>,
}

#[derive(Serialize)]
struct OutputJson<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a OutputData>,
}

#[derive(Serialize)]
struct Size {
    binary_data_size: usize,
}

/// The bytes of a response, and the length of the JSON if binary data follows.
#[derive(Debug)]
pub struct EncodedResponse {
    pub body: Vec<u8>,
    pub json: Option<usize>,
}

impl InferRequest {
    /// # Errors
    /// When an output is requested twice, or does not exist.
    pub fn check_outputs(&self, known: &[&str]) -> Result<(), String> {
        for (index, RequestedOutput { name, .. }) in self.outputs.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(format!("no output `{name}`; there are: {}", known.join(", ")));
            }
            // not quadratic: each known name gets here at most once
            if self.outputs[..index].iter().any(|other| other.name == *name) {
                return Err(format!("output `{name}` is asked for twice"));
            }
        }
        Ok(())
    }

    /// The requested outputs, or all of them when none is named, each in the requested form.
    ///
    /// # Errors
    /// When an output is requested twice, or does not exist.
    pub fn encode(&self, model: &str, outputs: &[Output]) -> Result<EncodedResponse, String> {
        self.check_outputs(&outputs.iter().map(|output| output.name).collect::<Vec<_>>())?;
        let mut chosen: Vec<(&Output, Option<bool>)> = Vec::new();
        if self.outputs.is_empty() {
            chosen.extend(outputs.iter().map(|output| (output, None)));
        } else {
            for RequestedOutput { name, parameters } in &self.outputs {
                let found = outputs.iter().find(|output| output.name == name);
                chosen.extend(found.map(|output| (output, parameters.bytes)));
            }
        }
        let (mut bytes, mut json) = (Vec::new(), Vec::new());
        for (Output { name, shape, data }, binary) in chosen {
            let binary = binary.or(self.parameters.all_bytes).unwrap_or(false).then(|| data.bytes());
            let parameters = binary.as_ref().map(|own| Size { binary_data_size: own.len() });
            let data_json = binary.is_none().then_some(data);
            json.push(OutputJson { name, shape, datatype: data.datatype(), parameters, data: data_json });
            bytes.extend(binary.unwrap_or_default());
        }
        let response = InferResponse { model_name: model, id: self.id.as_deref(), outputs: json };
        let mut body = serde_json::to_vec(&response).expect("it is plain data");
        let json = (!bytes.is_empty()).then_some(body.len());
        body.extend(bytes);
        Ok(EncodedResponse { body, json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(text: &str) -> Result<InferRequest, String> {
        InferRequest::read(text.as_bytes(), None)
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
        let request = InferRequest::read(&body, Some(json.len())).unwrap();
        assert_eq!(request.inputs[0].data.numbers, [1.5, -2.0]);
        assert_eq!(request.inputs[1].data.texts, ["hi"]);
        let wrong = |body: &[u8], json| InferRequest::read(body, Some(json)).unwrap_err();
        assert!(wrong(&body[..body.len() - 1], json.len()).contains("`t` has 6 bytes, 5 are left"));
        assert!(wrong(&[&body[..], b"x"].concat(), json.len()).contains("1 bytes after"));
        assert!(wrong(&body, body.len() + 1).contains("the header says"));
        let mut infinite = body.clone();
        infinite[json.len()..json.len() + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert!(wrong(&infinite, json.len()).contains("infinite"));
    }

    fn json_of(response: &EncodedResponse) -> Value {
        serde_json::from_slice(&response.body[..response.json.unwrap_or(response.body.len())]).unwrap()
    }

    #[test]
    fn an_answer_has_what_was_asked_for_in_the_form_that_was_asked_for() {
        let outputs = [
            Output { name: "logits", shape: vec![1, 2], data: OutputData::Numbers(vec![0.5, 1.0]) },
            Output { name: "text", shape: vec![1], data: OutputData::Texts(vec!["à".into()]) },
            Output { name: "labels", shape: vec![2], data: OutputData::Integers(vec![7, -1]) },
        ];
        let all = read(r#"{"id":"7","inputs":[]}"#).unwrap().encode("m", &outputs).unwrap();
        let json: Value = serde_json::from_slice(&all.body).unwrap();
        assert_eq!((all.json, &json["id"], &json["model_name"]), (None, &json!("7"), &json!("m")));
        assert_eq!(json["outputs"][0]["data"], json!([0.5, 1.0]));
        assert_eq!(json["outputs"][1]["data"], json!(["à"]));
        let wanted = r#"{"inputs":[],"outputs":[{"name":"text","parameters":{"binary_data":true}},{"name":"logits"}]}"#;
        let one = read(wanted).unwrap().encode("m", &outputs).unwrap();
        let (head, bytes) = one.body.split_at(one.json.unwrap());
        let json: Value = serde_json::from_slice(head).unwrap();
        assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 6);
        assert_eq!(bytes, [2, 0, 0, 0, 0xc3, 0xa0]);
        assert!(json["outputs"][1]["data"].is_array());
        let unknown = read(r#"{"inputs":[],"outputs":[{"name":"boxes"}]}"#).unwrap();
        assert!(unknown.encode("m", &outputs).err().unwrap().contains("logits, text, labels"));
        let binary = r#"{"inputs":[],"outputs":[{"name":"labels","parameters":{"binary_data":true}}]}"#;
        let integers = read(binary).unwrap().encode("m", &outputs).unwrap();
        assert_eq!(integers.body[integers.json.unwrap()..], [7i64.to_le_bytes(), (-1i64).to_le_bytes()].concat());
        assert_eq!(json_of(&integers)["outputs"][0]["datatype"], "INT64");
        let twice = read(r#"{"inputs":[],"outputs":[{"name":"text"},{"name":"logits"},{"name":"text"}]}"#).unwrap();
        assert_eq!(twice.encode("m", &outputs).err().unwrap(), "output `text` is asked for twice");
    }

    #[test]
    fn a_tensor_has_a_bounded_number_of_texts() {
        let of = |count: usize| {
            let data = vec!["\"\""; count].join(",");
            read(&format!(r#"{{"inputs":[{{"name":"x","shape":[1],"datatype":"BYTES","data":[{data}]}}]}}"#))
        };
        assert_eq!(of(MOST_TEXTS).unwrap().inputs[0].data.texts.len(), MOST_TEXTS);
        assert!(of(MOST_TEXTS + 1).unwrap_err().contains("more than 65536 texts"));
        let empty = vec![0; 4 * (MOST_TEXTS + 1)];
        assert!(Data::of_bytes("BYTES", &empty).unwrap_err().contains("more than 65536 texts"));
    }
}
