use super::*;
use std::io::Write;
use std::path::PathBuf;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const VALUES: [f32; 6] = [0.0, 1.0, -2.5, 0.125, 96.0, -0.75];

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    // some file systems wait for the disk when a file is written over
    _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn of(kind: FloatKind) -> Vec<u8> {
    match kind {
        FloatKind::F64 => VALUES.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
        FloatKind::F32 => VALUES.iter().flat_map(|v| v.to_le_bytes()).collect(),
        FloatKind::F16 => VALUES.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        FloatKind::BF16 => VALUES.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
    }
}

fn archive(entries: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// What `torch.save` writes: a pickle of protocol 2 that refers to storages beside it.
#[derive(Default)]
struct Torch {
    pickle: Vec<u8>,
    storages: Vec<Vec<u8>>,
}

impl Torch {
    fn new() -> Self {
        Self { pickle: b"\x80\x02".to_vec(), storages: Vec::new() }
    }

    fn code(mut self, code: &[u8]) -> Self {
        self.pickle.extend(code);
        self
    }

    fn text(self, text: &str) -> Self {
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        self.code(b"X").code(&length).code(text.as_bytes())
    }

    fn number(self, number: usize) -> Self {
        self.code(b"J").code(&i32::try_from(number).unwrap().to_le_bytes())
    }

    fn tuple(self, numbers: &[usize]) -> Self {
        numbers.iter().fold(self.code(b"("), |torch, number| torch.number(*number)).code(b"t")
    }

    /// `storage` is such as `FloatStorage`.
    fn tensor(mut self, storage: &str, bytes: Vec<u8>, offset: usize, shape: &[usize], strides: &[usize]) -> Self {
        let element = match storage {
            "DoubleStorage" | "LongStorage" => 8,
            "FloatStorage" => 4,
            _ => 2,
        };
        let (key, count) = (self.storages.len().to_string(), bytes.len() / element);
        self.storages.push(bytes);
        let torch = self.code(b"ctorch._utils\n_rebuild_tensor_v2\n((").text("storage");
        let torch = torch.code(format!("ctorch\n{storage}\n").as_bytes()).text(&key).text("cpu").number(count);
        let torch = torch.code(b"tQ").number(offset).tuple(shape).tuple(strides);
        torch.code(b"\x89ccollections\nOrderedDict\n)RtR")
    }

    fn file(self) -> Vec<u8> {
        let pickle = self.pickle;
        let mut entries = vec![("archive/data.pkl".to_string(), pickle), ("archive/version".into(), b"3\n".to_vec())];
        entries.extend(self.storages.into_iter().enumerate().map(|(i, bytes)| (format!("archive/data/{i}"), bytes)));
        let entries: Vec<_> = entries.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        archive(&entries, CompressionMethod::Stored)
    }
}

const DICT: &[u8] = b"ccollections\nOrderedDict\n)R(";

fn torch_file() -> Vec<u8> {
    let torch = Torch::new().code(DICT);
    let torch = torch.text("a.weight").tensor("FloatStorage", of(FloatKind::F32), 0, &[2, 3], &[3, 1]);
    let torch = torch.text("b.bias").tensor("HalfStorage", of(FloatKind::F16), 0, &[6], &[1]);
    let torch = torch.text("bn.num_batches_tracked").tensor("LongStorage", vec![0; 8], 0, &[], &[]);
    torch.code(b"u.").file()
}

fn safetensors_file() -> Vec<u8> {
    use safetensors::tensor::TensorView;
    let (f32s, f16s, bf16s, f64s) = (of(FloatKind::F32), of(FloatKind::F16), of(FloatKind::BF16), of(FloatKind::F64));
    let view = |kind, bytes| TensorView::new(kind, vec![2, 3], bytes).unwrap();
    let count = [0; 8];
    let tensors = [
        ("f32", view(Dtype::F32, &f32s)),
        ("f16", view(Dtype::F16, &f16s)),
        ("bf16", view(Dtype::BF16, &bf16s)),
        ("f64", view(Dtype::F64, &f64s)),
        ("bn.num_batches_tracked", TensorView::new(Dtype::I64, vec![], &count).unwrap()),
    ];
    safetensors::serialize(tensors, None).unwrap()
}

fn array(header: &str, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", length.as_slice(), header.as_bytes(), bytes].concat()
}

fn npz_file(method: CompressionMethod) -> Vec<u8> {
    let header = |kind: &str| format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': (2, 3), }}   \n");
    let entries = [
        ("embedding/kernel.npy", array(&header("<f4"), &of(FloatKind::F32))),
        ("f16.npy", array(&header("<f2"), &of(FloatKind::F16))),
        ("bf16.npy", array(&header("|V2"), &of(FloatKind::BF16))),
        ("step.npy", array("{'descr': '<i8', 'fortran_order': False, 'shape': ()}", &[0; 8])),
    ];
    archive(&entries, method)
}

fn assert_values(checkpoint: &Checkpoint, name: &str, shape: &[usize]) {
    assert_eq!(checkpoint.tensors[name], TensorData::new(VALUES.to_vec(), shape.to_vec()), "{name}");
}

#[test]
fn safetensors_of_any_float_become_f32_and_counters_are_left_out() {
    let folder = folder();
    let checkpoint = read(&write(&folder, "a.bin", &safetensors_file())).unwrap();
    assert_eq!(checkpoint.format, WeightsFormat::Safetensors);
    assert_eq!(checkpoint.tensors.keys().collect::<Vec<_>>(), ["bf16", "f16", "f32", "f64"]);
    for name in ["bf16", "f16", "f32", "f64"] {
        assert_values(&checkpoint, name, &[2, 3]);
    }
}

#[test]
fn pytorch_files_are_read_whatever_they_are_called() {
    let folder = folder();
    let checkpoint = read(&write(&folder, "a.safetensors", &torch_file())).unwrap();
    assert_eq!(checkpoint.format, WeightsFormat::PyTorch);
    assert_eq!(checkpoint.tensors.len(), 2);
    assert_values(&checkpoint, "a.weight", &[2, 3]);
    assert_values(&checkpoint, "b.bias", &[6]);
}

#[test]
fn views_of_a_storage_are_read_with_their_strides_and_offset() {
    let folder = folder();
    let torch = Torch::new().code(b"}(");
    let torch = torch.text("transposed").tensor("FloatStorage", of(FloatKind::F32), 0, &[3, 2], &[1, 3]);
    let torch = torch.text("inside").tensor("BFloat16Storage", of(FloatKind::BF16), 1, &[2], &[3]);
    let torch = torch.text("spread").tensor("DoubleStorage", of(FloatKind::F64), 2, &[3], &[0]);
    let tensors = read(&write(&folder, "a.pth", &torch.code(b"u.").file())).unwrap().tensors;
    let expected = |values: &[f32], shape: &[usize]| TensorData::new(values.to_vec(), shape.to_vec());
    assert_eq!(tensors["transposed"], expected(&[0.0, 0.125, 1.0, 96.0, -2.5, -0.75], &[3, 2]));
    assert_eq!(tensors["inside"], expected(&[1.0, 96.0], &[2]));
    assert_eq!(tensors["spread"], expected(&[-2.5; 3], &[3]));
}

#[test]
fn parameters_are_tensors() {
    let folder = folder();
    let torch = Torch::new().code(b"}(").text("w").code(b"ctorch._utils\n_rebuild_parameter\n(");
    let torch = torch.tensor("FloatStorage", of(FloatKind::F32), 0, &[6], &[1]);
    let torch = torch.code(b"\x88ccollections\nOrderedDict\n)RtRu.");
    assert_values(&read(&write(&folder, "a.pth", &torch.file())).unwrap(), "w", &[6]);
}

#[test]
fn the_dictionary_of_a_training_script_is_unwrapped() {
    let folder = folder();
    for wrapper in WRAPPERS {
        let torch = Torch::new().code(b"}(").text("epoch").number(3).text("optimizer").code(b"}(");
        let torch = torch.text("moment").tensor("FloatStorage", of(FloatKind::F32), 0, &[6], &[1]).code(b"u");
        let torch = torch.text(wrapper).code(DICT);
        let torch = torch.text("w").tensor("FloatStorage", of(FloatKind::F32), 0, &[6], &[1]).code(b"uu.");
        let checkpoint = read(&write(&folder, "a.pth", &torch.file())).unwrap();
        assert_eq!(checkpoint.tensors.keys().collect::<Vec<_>>(), ["w"], "{wrapper}");
    }
    // the name of a model is no dictionary
    let torch = Torch::new().code(b"}(").text("model").text("vit").text("w");
    let torch = torch.tensor("FloatStorage", of(FloatKind::F32), 0, &[6], &[1]).code(b"u.");
    assert_values(&read(&write(&folder, "a.pth", &torch.file())).unwrap(), "w", &[6]);
}

#[test]
fn a_pickle_that_asks_for_a_command_runs_nothing() {
    let folder = folder();
    let witness = folder.path().join("witness");
    let torch = Torch::new().code(b"}(").text("evil").code(b"cposix\nsystem\n(");
    let torch = torch.text(&format!("touch {}", witness.display())).code(b"tRu.");
    let error = read(&write(&folder, "a.pth", &torch.file())).unwrap_err().to_string();
    assert!(error.contains("a.pth"), "{error}");
    assert!(!witness.exists());
}

#[test]
fn numpy_archives_are_read_stored_or_deflated() {
    let folder = folder();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let checkpoint = read(&write(&folder, "a.npz", &npz_file(method))).unwrap();
        assert_eq!(checkpoint.format, WeightsFormat::NumPy);
        assert_eq!(checkpoint.tensors.len(), 3);
        for name in ["embedding/kernel", "f16", "bf16"] {
            assert_values(&checkpoint, name, &[2, 3]);
        }
    }
}

#[test]
fn what_is_no_checkpoint_is_named_with_the_reason() {
    let folder = folder();
    let fortran = array("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", &of(FloatKind::F32));
    let complex = array("{'descr': '<c8', 'fortran_order': False, 'shape': (2, 3)}", &of(FloatKind::F64));
    let cases: [(&[u8], &str); 8] = [
        (b"", "the file is empty"),
        (b"PK", "neither safetensors nor"),
        (b"hello, world", "neither safetensors nor"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"<!DOCTYPE html>", "a web page"),
        (&archive(&[("readme.txt", b"hello".to_vec())], CompressionMethod::Stored), "a.bin"),
        (&archive(&[("x.npy", fortran)], CompressionMethod::Stored), "array `x`: columns before rows"),
        (&archive(&[("x.npy", complex)], CompressionMethod::Stored), "array `x`: elements of type `<c8`"),
    ];
    for (bytes, reason) in cases {
        let error = read(&write(&folder, "a.bin", bytes)).unwrap_err().to_string();
        assert!(error.contains("a.bin: ") && error.contains(reason), "{error}");
    }
    let missing = read(&folder.path().join("missing.pth")).unwrap_err().to_string();
    assert!(missing.contains("missing.pth: "), "{missing}");
    assert!(read(folder.path()).is_err(), "a folder is no checkpoint");
}

#[test]
fn claims_larger_than_the_file_are_refused_before_memory_is_taken() {
    let folder = folder();
    let header = |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}");
    let many = (1 << 31) - 1;
    let spread = Torch::new().code(b"}(").text("w");
    let spread = spread.tensor("FloatStorage", of(FloatKind::F32), 0, &[many], &[0]).code(b"u.");
    let json = br#"{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#;
    let short = [&(json.len() as u64).to_le_bytes(), json.as_slice(), &[0; 16]].concat();
    let zeros = array(&header("(1000000000,)"), &vec![0; 1 << 16]);
    let cases = [
        short,
        [&99_000_000u64.to_le_bytes(), b"{".as_slice()].concat(),
        spread.file(),
        archive(&[("x.npy", array(&header("(1099511627776,)"), &[]))], CompressionMethod::Stored),
        archive(&[("x.npy", array(&header("(99999999999, 99999999999)"), &[]))], CompressionMethod::Stored),
        archive(&[("x.npy", array(&header("(99999999999999999999999,)"), &[]))], CompressionMethod::Stored),
        archive(&[("x.npy", zeros)], CompressionMethod::Deflated),
    ];
    for (index, bytes) in cases.iter().enumerate() {
        let error = read(&write(&folder, "a.bin", bytes)).expect_err(&format!("case {index}")).to_string();
        assert!(error.contains("a.bin: "), "{error}");
    }
}

fn every_kind() -> [Vec<u8>; 4] {
    let (stored, deflated) = (npz_file(CompressionMethod::Stored), npz_file(CompressionMethod::Deflated));
    [safetensors_file(), torch_file(), stored, deflated]
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let folder = folder();
    for (kind, bytes) in every_kind().iter().enumerate() {
        for length in (0..bytes.len()).step_by(3) {
            let error = read(&write(&folder, "a.bin", &bytes[..length])).err();
            let error = error.unwrap_or_else(|| panic!("{length} of {} bytes of file {kind}", bytes.len()));
            assert!(error.to_string().contains("a.bin: "), "{error}");
        }
    }
}

#[test]
fn a_file_with_a_wrong_byte_never_panics() {
    let folder = folder();
    for bytes in every_kind() {
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            for flip in [0x01, 0x80, 0xff] {
                wrong[at] = bytes[at] ^ flip;
                if let Err(error) = read(&write(&folder, "a.bin", &wrong)) {
                    assert!(error.to_string().contains("a.bin: "), "{error}");
                }
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_a_numpy_archive_is_caught_by_its_checksum() {
    let folder = folder();
    let mut bytes = npz_file(CompressionMethod::Stored);
    let values = of(FloatKind::F32);
    let at = bytes.windows(values.len()).position(|window| window == values).unwrap();
    // the top of an exponent: 1.0 becomes infinite
    bytes[at + 4 + 3] ^= 0x40;
    let error = read(&write(&folder, "a.npz", &bytes)).unwrap_err().to_string();
    assert!(
        error.contains("a.npz: array `embedding/kernel`: ") && error.to_lowercase().contains("checksum"),
        "{error}"
    );
}

#[test]
fn an_array_that_is_longer_than_it_says_is_refused() {
    let folder = folder();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
    let bytes = archive(&[("x.npy", array(header, &of(FloatKind::F32)))], CompressionMethod::Stored);
    let error = read(&write(&folder, "a.npz", &bytes)).unwrap_err().to_string();
    assert!(error.contains("array `x`: more than 16 bytes"), "{error}");
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let folder = folder();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    let entries = [("x1.npy", array(header, &of(FloatKind::F32))), ("x2.npy", array(header, &of(FloatKind::F32)))];
    let mut bytes = archive(&entries, CompressionMethod::Stored);
    // a writer that takes care refuses to write this: both names become `x1.npy`
    while let Some(at) = bytes.windows(6).position(|window| window == b"x2.npy") {
        bytes[at + 1] = b'1';
    }
    let error = read(&write(&folder, "a.npz", &bytes)).unwrap_err().to_string();
    assert!(error.contains("two arrays are named `x1`"), "{error}");

    let tensor = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let json = format!(r#"{{"w":{tensor},"v":{{"dtype":"F32","shape":[1],"data_offsets":[4,8]}},"w":{tensor}}}"#);
    let bytes = [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &[0; 8]].concat();
    let error = read(&write(&folder, "a.safetensors", &bytes)).unwrap_err().to_string();
    assert!(error.contains("two tensors are named `w`"), "{error}");
}

#[test]
fn what_is_not_finite_is_noticed_in_every_format() {
    let folder = folder();
    assert_eq!(read(&write(&folder, "a.bin", &safetensors_file())).unwrap().not_finite, Vec::<String>::new());
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (kind, dtype) in [
            (FloatKind::F32, Dtype::F32),
            (FloatKind::F64, Dtype::F64),
            (FloatKind::F16, Dtype::F16),
            (FloatKind::BF16, Dtype::BF16),
        ] {
            let mut bytes = of(kind);
            let last = bytes.len() - kind.size();
            match kind {
                FloatKind::F64 => bytes[last..].copy_from_slice(&f64::from(wrong).to_le_bytes()),
                FloatKind::F32 => bytes[last..].copy_from_slice(&wrong.to_le_bytes()),
                FloatKind::F16 => bytes[last..].copy_from_slice(&f16::from_f32(wrong).to_le_bytes()),
                FloatKind::BF16 => bytes[last..].copy_from_slice(&bf16::from_f32(wrong).to_le_bytes()),
            }
            let view = safetensors::tensor::TensorView::new(dtype, vec![2, 3], &bytes).unwrap();
            let file = safetensors::serialize([("head.weight", view)], None).unwrap();
            assert_eq!(read(&write(&folder, "a.bin", &file)).unwrap().not_finite, ["head.weight"], "{wrong} {kind:?}");
        }
        assert!(!all_finite(&[1.0, wrong, 0.0]) && all_finite(&[f32::MAX, f32::MIN, 0.0, -0.0, 1e-45]));
    }
}
