//! The description of the interface in `OpenAPI` 3.1. A test compares it with the table of routes.

use axum::response::Response;
use serde_json::{Value, json};

use super::json_response;

pub async fn document() -> Response {
    json_response(&built())
}

pub fn built() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "regard",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Attention models over HTTP. `/v2` is the Open Inference Protocol; `/v1` takes pictures and \
                sentences as they are. Every error is `{\"error\": \"..\"}`.",
        },
        "paths": {
            "/": { "get": file("The page") },
            "/assets/{path}": { "get": with(file("A file of the page"), &[path("path")]) },
            "/openapi.json": { "get": plain("This document") },
            "/metrics": { "get": text("What the server counted, for Prometheus") },
            "/v1/models": { "get": answers("What is served", "Models") },
            "/v1/classify": {
                "post": with(picture("What is on a picture", "Classified"), &[
                    option("model", "string", "a classifier; the first without"),
                    option("top", "integer", "how many answers, 5 without"),
                ]),
            },
            "/v1/explain": {
                "post": with(picture("Where a model looks on a picture", "Explained"), &[
                    option("model", "string", "a classifier; the first without"),
                    option("top", "integer", "how many answers, 5 without"),
                    option("x", "number", "the patch whose attention is shown, from 0 at the left to 1; needs `y`"),
                    option("y", "number", "from 0 at the top to 1; the class token, or the middle, without"),
                    option("layer", "string", "the path of one layer, such as `blocks.3.attn`; all without"),
                ]),
            },
            "/v1/detect": {
                "post": with(picture("Which objects are where on a picture", "Detected"), &[
                    option("model", "string", "a detector; the first without"),
                    option("threshold", "number", "the lowest score, from 0 to 1; 0.5 without"),
                ]),
            },
            "/v1/detect/attention": {
                "post": with(picture("What a detection was read from", "BoxAttention"), &[
                    option("model", "string", "a detector; the first without"),
                    option("index", "integer", "of a detection of `/v1/detect`, which has the best first; 0 without"),
                ]),
            },
            "/v1/clips": {
                "post": with(clip("What happens in a clip", "ClassifiedClip"), &[
                    option("model", "string", "a model of video; the first without"),
                    option("top", "integer", "how many answers, 5 without"),
                ]),
            },
            "/v1/clips/attention": {
                "post": with(clip("Where a model looks in a clip", "ClipAttention"), &[
                    option("model", "string", "a model of video; the first without"),
                    option("frame", "integer", "of the patch that looks, of those that the model sees, from 0; needs `x` and `y`"),
                    option("x", "number", "of the patch, from 0 at the left to 1; the class token without"),
                    option("y", "number", "of the patch, from 0 at the top to 1"),
                ]),
            },
            "/v1/attend": { "post": sent("The best translation of a sentence, and where the model looked for it", "Text", "Attended") },
            "/v1/ask": { "post": sent("The answer to a question about a picture", "Question", "AnsweredQuestion") },
            "/v1/match": { "post": sent("Which of several texts is about a picture", "TextsAndPicture", "Matched") },
            "/v1/embed": { "post": sent("Sentences as vectors", "EmbeddedTexts", "Embedded") },
            "/v1/runs": { "get": plain("The training runs that are shown, the latest first") },
            "/v1/runs/{path}": { "get": with(plain("The curves of a run"), &[path("path")]) },
            "/v1/samples": {
                "get": with(plain("Pictures that come with the program"), &[
                    option("task", "string", "`classify` for one object a picture, `detect` for scenes, `ask` for scenes with a question, `clips` for clips; `classify` without"),
                ]),
            },
            "/v1/similarity": { "post": sent("How alike the layers of two models are, by CKA", "Pair", "Similarity") },
            "/v1/translate": { "post": sent("Translations of sentences", "Texts", "Translated") },
            "/v2": { "get": plain("What this server is") },
            "/v2/health/live": { "get": plain("Whether the server is there") },
            "/v2/health/ready": { "get": plain("Whether it answers") },
            "/v2/models/{name}": { "get": with(answers("What a model takes and gives", "Metadata"), &[path("name")]) },
            "/v2/models/{name}/ready": { "get": with(plain("Whether a model answers"), &[path("name")]) },
            "/v2/models/{name}/infer": {
                "post": with(sent("Tensors through a model", "Inference", "Inferred"), &[path("name")]),
            },
            "/v2/repository/index": { "post": plain("The models that there are") },
            "/v2/repository/models/{name}/load": {
                "post": with(plain("Loads a model again from its files, where the server allows it"), &[path("name")]),
            },
        },
        "components": { "schemas": schemas(), "responses": { "Error": {
            "description": "400 malformed, 401 no token, 404 no such model, 408 too slow, 413 too large, 421 another \
                host, 422 the model cannot work with it, 429 busy (see `Retry-After`), 500 a bug or a damaged model, 504 no \
                answer in time",
            "content": { "application/json": { "schema": {
                "type": "object", "properties": { "error": { "type": "string" } }, "required": ["error"],
            } } },
        } }, "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } } },
        "security": [{}, { "token": [] }],
    })
}

fn operation(summary: &str, content: Value) -> Value {
    json!({
        "summary": summary,
        "responses": {
            "200": { "description": "the answer", "content": content },
            "default": { "$ref": "#/components/responses/Error" },
        },
    })
}

fn plain(summary: &str) -> Value {
    operation(summary, json!({ "application/json": {} }))
}

fn text(summary: &str) -> Value {
    operation(summary, json!({ "application/openmetrics-text": {} }))
}

fn file(summary: &str) -> Value {
    operation(summary, json!({ "*/*": {} }))
}

fn schema(name: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{name}") } } })
}

fn answers(summary: &str, answer: &str) -> Value {
    operation(summary, schema(answer))
}

fn sent(summary: &str, question: &str, answer: &str) -> Value {
    let mut operation = answers(summary, answer);
    operation["requestBody"] = json!({ "required": true, "content": schema(question) });
    operation
}

fn picture(summary: &str, answer: &str) -> Value {
    let mut operation = answers(summary, answer);
    let bytes = json!({ "schema": { "type": "string", "format": "binary" } });
    operation["requestBody"] = json!({
        "required": true,
        "description": "the bytes of a JPEG, PNG, WebP, GIF or BMP file",
        "content": { "application/octet-stream": bytes },
    });
    operation
}

fn clip(summary: &str, answer: &str) -> Value {
    let mut operation = answers(summary, answer);
    let bytes = json!({ "schema": { "type": "string", "format": "binary" } });
    operation["requestBody"] = json!({
        "required": true,
        "description": "the bytes of a GIF, APNG, WebP, MP4, MOV or AVI file, or its frames",
        "content": { "application/octet-stream": bytes, "application/json": schema("Frames")["application/json"] },
    });
    operation
}

fn with(mut operation: Value, parameters: &[Value]) -> Value {
    operation["parameters"] = json!(parameters);
    operation
}

fn path(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}

fn option(name: &str, kind: &str, description: &str) -> Value {
    json!({ "name": name, "in": "query", "required": false, "description": description, "schema": { "type": kind } })
}

fn schemas() -> Value {
    let list = |items: Value| json!({ "type": "array", "items": items });
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    let (string, integer, number) =
        (json!({ "type": "string" }), json!({ "type": "integer" }), json!({ "type": "number" }));
    let answers = list(object(json!({ "class": integer, "label": string, "probability": number })));
    let size = list(integer.clone());
    let map = json!({
        "description": "numbers on the grid of the picture; null where the model has none",
        "properties": { "grid": size, "values": list(number.clone()) },
    });
    let box_schema = json!({
        "type": "object",
        "description": "in pixels of the picture that was sent, upright",
        "properties": { "x": number, "y": number, "width": number, "height": number },
    });
    let regions = list(box_schema.clone());
    let picture_file = json!({ "type": "string", "description": "a JPEG, PNG, WebP, GIF or BMP file in base64" });
    let given_regions = json!({
        "type": "array",
        "items": box_schema,
        "description": "boxes instead of those that the model finds itself",
    });
    let detection = object(json!({ "class": integer, "label": string, "score": number, "box": box_schema }));
    let clip_map = object(json!({
        "layer": string,
        "size": { "type": "array", "items": integer, "description": "frames, rows and columns" },
        "query": { "description": "frame, row and column of who looks; null is the class token" },
        "heads": list(list(number.clone())),
    }));
    let tensor = object(json!({
        "name": string,
        "datatype": { "type": "string", "enum": ["FP32", "INT64", "BYTES"] },
        "shape": size,
        "data": { "type": "array", "description": "in the order of rows, nested or not" },
        "parameters": object(json!({ "binary_data_size": integer })),
    }));
    let description = object(json!({ "name": string, "datatype": string, "shape": size }));
    json!({
        "Models": object(json!({ "models": list(object(json!({
            "name": string,
            "task": { "type": "string", "enum": ["classify", "detect", "clips", "translate", "answer", "embed"] },
            "family": string,
            "frames": integer,
            "image": size,
            "classes": integer,
            "parameters": integer,
            "multiply_adds": integer,
        }))) })),
        "Pair": object(json!({
            "models": list(string.clone()),
            "pictures": { "type": "array", "items": string, "description":
                "files in base64, at least 4; those that come with the program without" },
        })),
        "Similarity": object(json!({
            "models": list(string.clone()),
            "rows": list(string.clone()),
            "columns": list(string.clone()),
            "values": list(list(number.clone())),
            "pictures": integer,
        })),
        "Text": object(json!({ "model": string, "text": string, "beam": integer })),
        "Attended": object(json!({
            "text": string,
            "translation": string,
            "source": list(string.clone()),
            "target": list(string.clone()),
            "layers": list(object(json!({
                "name": string,
                "kind": { "type": "string", "enum": ["encoder", "decoder", "cross"] },
                "heads": list(list(list(number.clone()))),
            }))),
        })),
        "Classified": object(json!({ "model": string, "answers": answers })),
        "Explained": object(json!({ "model": string, "answers": answers, "layers": list(object(json!({
            "name": string,
            "reach": { "type": "string", "enum": ["everywhere", "window"] },
            "of": size,
            "query": { "description": "row and column of who looks; null is the class token" },
            "grid": size,
            "prefix": list(list(number.clone())),
            "heads": list(list(number.clone())),
        }))), "size": size, "picture": string, "rollout": map, "cam": map, "lens": list(object(json!({
            "layer": string,
            "answers": answers,
        }))) })),
        "Detected": object(json!({
            "model": string,
            "size": { "type": "array", "items": integer, "description": "rows and columns of the picture" },
            "threshold": number,
            "detections": { "type": "array", "items": detection, "description": "the best first" },
        })),
        "BoxAttention": object(json!({
            "model": string,
            "size": size,
            "index": integer,
            "detection": detection,
            "method": { "type": "string", "enum": ["cross-attention", "grad-cam"], "description":
                "the weights of DETR's query in the last decoder layer, or Grad-CAM of the score at the level of the box" },
            "layer": string,
            "grid": size,
            "span": { "type": "array", "items": number, "description":
                "rows and columns of the picture that the grid spans, in pixels; padding reaches beyond the picture" },
            "values": list(number.clone()),
            "heads": { "type": "array", "items": list(number.clone()), "description": "empty for Grad-CAM" },
        })),
        "Frames": object(json!({
            "frames": { "type": "array", "items": string, "description": "files of pictures in base64, in their order" },
        })),
        "ClassifiedClip": object(json!({
            "model": string,
            "frames": { "type": "array", "items": integer, "description": "which frames of the clip the model saw" },
            "answers": answers,
        })),
        "ClipAttention": object(json!({
            "model": string,
            "frames": size,
            "answers": answers,
            "size": { "type": "array", "items": integer, "description": "rows and columns of a frame" },
            "pictures": { "type": "array", "items": string, "description": "the frames that the model saw, as `data:` URLs" },
            "layers": list(clip_map.clone()),
            "rollout": clip_map,
        })),
        "Texts": object(json!({
            "model": string,
            "texts": list(string.clone()),
            "beam": integer,
            "best": integer,
        })),
        "Translated": object(json!({
            "model": string,
            "translations": list(list(object(json!({ "text": string, "score": number })))),
        })),
        "Question": object(json!({
            "model": string,
            "picture": picture_file,
            "second": { "type": "string", "description": "the second picture, for models of statements about two" },
            "question": string,
            "regions": given_regions,
            "top": { "type": "integer", "description": "how many answers, 3 without" },
            "attention": { "type": "boolean", "description": "whether attention between words and regions is wanted" },
            "layer": { "type": "string", "description": "the path of one layer of the attention; all without" },
        })),
        "AnsweredQuestion": object(json!({
            "model": string,
            "question": string,
            "answers": list(object(json!({ "answer": string, "probability": number }))),
            "tokens": { "type": "array", "items": string, "description": "the question as the model reads it" },
            "unknown": { "type": "array", "items": string, "description": "words that the model does not know" },
            "size": { "type": "array", "items": integer, "description": "rows and columns of the picture" },
            "regions": { "type": "array", "items": regions["items"], "description":
                "in the order in which the model sees them; a ViLBERT sees the whole picture first" },
            "second": object(json!({ "size": size, "regions": regions })),
            "attention": object(json!({
                "layers": list(object(json!({
                    "layer": string,
                    "direction": { "type": "string", "enum": ["words-to-regions", "regions-to-words"] },
                    "heads": list(list(list(number.clone()))),
                }))),
                "shares": { "type": "array", "items": list(number.clone()), "description":
                    "how each word's attention to regions is shared among them, over all layers and heads" },
                "explained": { "type": "array", "description":
                    "for each region the words that look at it more than at others, by their places among `tokens`",
                    "items": object(json!({
                        "region": integer,
                        "words": list(object(json!({ "word": integer, "share": number }))),
                    })) },
                "plan": object(json!({
                    "shares": { "type": "array", "items": list(number.clone()), "description":
                        "UNITER's transport plan: the share of each word that goes to each region" },
                    "trained": { "type": "boolean", "description": "whether the model was trained to align words with regions" },
                })),
                "relevance": object(json!({
                    "words": list(number.clone()),
                    "regions": list(number.clone()),
                })),
            })),
        })),
        "TextsAndPicture": object(json!({
            "model": string,
            "picture": picture_file,
            "texts": list(string.clone()),
            "regions": given_regions,
        })),
        "Matched": object(json!({
            "model": string,
            "size": size,
            "regions": regions,
            "scores": { "type": "array", "description": "in the order of the texts", "items": object(json!({
                "text": string,
                "probability": { "type": "number", "description": "that the text is about the picture, each text judged alone" },
            })) },
            "best": { "type": "integer", "description": "index of the text with the highest score" },
            "meaning": string,
        })),
        "EmbeddedTexts": object(json!({
            "model": string,
            "texts": list(string.clone()),
            "truncate": { "type": "boolean", "description": "whether texts that are too long are cut off; an error without" },
        })),
        "Embedded": object(json!({
            "model": string,
            "dimensions": integer,
            "tokens": size,
            "vectors": { "type": "array", "items": list(number.clone()), "description": "of length one each" },
        })),
        "Metadata": object(json!({
            "name": string,
            "versions": list(string.clone()),
            "platform": string,
            "inputs": list(description.clone()),
            "outputs": list(description),
        })),
        "Inference": object(json!({
            "id": string,
            "inputs": list(tensor.clone()),
            "outputs": list(object(json!({ "name": string, "parameters": object(json!({
                "binary_data": { "type": "boolean" },
            })) }))),
            "parameters": object(json!({ "binary_data_output": { "type": "boolean" } })),
        })),
        "Inferred": object(json!({ "model_name": string, "id": string, "outputs": list(tensor) })),
    })
}
