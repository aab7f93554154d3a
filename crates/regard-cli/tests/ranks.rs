//! Several processes that train one model, started by `mpirun` on this machine.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What no wait of a test may reach.
const LONGEST: Duration = Duration::from_mins(1);

/// A folder with data of three classes of noise, and with runs.
struct Workspace(tempfile::TempDir);

impl Workspace {
    /// 66 training pictures, 9 of validation, 18 of the test; `keys` are lines of the recipe.
    fn new(keys: &str) -> Self {
        let workspace = Self(tempfile::tempdir().unwrap());
        for class in 0..3 {
            let folder = workspace.path("data").join(format!("class{class}"));
            fs::create_dir_all(&folder).unwrap();
            for number in 0..31 {
                let mut state: u64 = 1 + 100 * class + number;
                let noise = std::iter::repeat_with(|| {
                    // the generator of C's standard, good enough for a picture
                    state = state * 1_103_515_245 % (1 << 31) + 12345;
                    (state >> 16) as u8
                });
                let pixels = image::RgbImage::from_raw(12, 12, noise.take(3 * 12 * 12).collect()).unwrap();
                pixels.save(folder.join(format!("{number}.png"))).unwrap();
            }
        }
        let recipe = format!(
            "data = '{}'\nworkers = 1\n{keys}
            set = {{ image = [12, 12], dim = 16, depth = 2, heads = 2, mlp_dim = 32 }}
            optimiser = {{ rule = 'adamw', rate = 3e-3, decay = 0.05 }}",
            workspace.path("data").display()
        );
        fs::write(workspace.path("recipe.toml"), recipe).unwrap();
        workspace
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `regard train` in so many processes; `options` are those of `mpirun`.
    fn command(&self, ranks: usize, run: &str, options: &[&str]) -> Command {
        let regard = env!("CARGO_BIN_EXE_regard");
        let mut command = if ranks == 1 {
            Command::new(regard)
        } else {
            let mut command = Command::new("mpirun");
            command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]);
            command.args(options).arg(regard);
            command
        };
        command.args(["train", "recipe.toml", "-o", run]);
        // a launcher makes its folder there, and two that begin at once stumble over each other's
        command.env("TMPDIR", self.0.path());
        command.current_dir(self.0.path()).env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
        command
    }

    fn finish(&self, ranks: usize, run: &str) {
        let output = self.command(ranks, run, &[]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }

    /// The records of a run, without its times.
    fn records(&self, run: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap_or_default();
        // the last line may be half written
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let timeless = lines.map(|mut line| {
            let fields = line.as_object_mut().unwrap();
            fields.retain(|key, _| key != "seconds" && key != "items_per_second");
            line
        });
        timeless.collect()
    }

    fn losses(&self, run: &str) -> Vec<f64> {
        let steps = self.records(run).into_iter().filter(|record| record["kind"] == "step");
        steps.filter_map(|record| record["loss"].as_f64()).collect()
    }

    fn saved_step(&self, run: &str) -> Option<u64> {
        let text = fs::read(self.path(run).join("checkpoint").join("last.json")).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?["progress"]["step"].as_u64()
    }

    /// Begins a job and waits until a step is saved.
    fn begin(&self, ranks: usize, run: &str, options: &[&str], step: u64) -> Child {
        let mut command = self.command(ranks, run, options);
        let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        while self.saved_step(run).is_none_or(|saved| saved < step) {
            let ended = job.try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < LONGEST, "{}", stderr(&job.wait_with_output().unwrap()));
            std::thread::sleep(Duration::from_millis(5));
        }
        job
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// The process of a rank, by the environment that the launcher gave it.
fn process_of(job: &Child, rank: usize) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", job.id());
    let children = fs::read_to_string(children).unwrap();
    let mut children = children.split_whitespace().map(|id| id.parse::<u32>().unwrap());
    let expected = format!("OMPI_COMM_WORLD_RANK={rank}");
    let is_rank = |id: &u32| {
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == expected.as_bytes())
    };
    children.find(is_rank).unwrap()
}

#[track_caller]
fn assert_law(ranks: usize, keys: &str) {
    let workspace = Workspace::new(keys);
    workspace.finish(1, "one");
    workspace.finish(ranks, "several");
    let (one, several) = (workspace.losses("one"), workspace.losses("several"));
    assert_eq!((one.len(), several.len()), (6, 6));
    let distance = std::iter::zip(&one, &several).map(|(one, several)| (one - several).abs()).fold(0.0, f64::max);
    assert!(distance < 1e-4, "{distance}: {one:?} {several:?}");
}

#[test]
fn two_ranks_with_16_pictures_each_are_one_with_32() {
    assert_law(2, "epochs = 3\nbatch = 32");
}

#[test]
fn three_ranks_with_8_pictures_each_are_one_with_24() {
    assert_law(3, "epochs = 3\nbatch = 24");
}

#[test]
fn ranks_mix_the_pictures_that_one_process_mixes() {
    let rich = "epochs = 3\nema = 0.9\nclip = 1.0\nmix = { mixup = 0.8, cutmix = 1.0 }
        augment = { crop = { random = { padding = 2 } }, flip = 0.5, erase = 0.25 }";
    assert_law(2, &format!("{rich}\nbatch = 32\naccumulate = 2"));
    assert_law(3, &format!("{rich}\nbatch = 24"));
}

#[test]
fn two_ranks_translate_what_one_translates_with_different_numbers_of_tokens() {
    let workspace = Workspace(tempfile::tempdir().unwrap());
    fs::create_dir(workspace.path("data")).unwrap();
    let word = |number: usize| ["uno", "due", "tre", "quattro", "cinque", "sei", "sette"][number % 7];
    let line = |number: usize| {
        let words: Vec<&str> = (0..=number % 5).map(|at| word(number + at * at)).collect();
        format!("{}\t{}", words.join(" ").to_uppercase(), words.join(" "))
    };
    for (part, lines) in [("train", 0..60), ("dev", 60..70), ("test", 70..80)] {
        let text: Vec<String> = lines.map(line).collect();
        fs::write(workspace.path("data").join(format!("{part}.tsv")), text.join("\n")).unwrap();
    }
    let recipe = "task = 'translate'\ndata = 'data'\nmodel = 'transformer-nano'\nepochs = 2\ntokens = 90\nlongest = 40
        vocabulary = 300\nset = { dim = 16, inner = 32, heads = 2, encoder_layers = 1, decoder_layers = 1, dropout = 0.0 }";
    fs::write(workspace.path("recipe.toml"), recipe).unwrap();
    workspace.finish(1, "one");
    workspace.finish(2, "two");
    let (one, two) = (workspace.losses("one"), workspace.losses("two"));
    assert!(one.len() > 6 && one.len() == two.len(), "{one:?} {two:?}");
    let distance = std::iter::zip(&one, &two).map(|(one, two)| (one - two).abs()).fold(0.0, f64::max);
    assert!(distance < 1e-4, "{distance}: {one:?} {two:?}");
}

/// The step after which a job was stopped.
#[track_caller]
fn assert_stopped(workspace: &Workspace, job: Child, run: &str) -> u64 {
    let output = job.wait_with_output().unwrap();
    let (text, step) = (stderr(&output), workspace.saved_step(run).unwrap());
    assert!(text.contains(&format!("stopped after step {step}, which is saved")), "{text}");
    assert!(!output.status.success() && workspace.losses(run).len() as u64 == step, "{text}");
    step
}

#[test]
fn ctrl_c_to_the_launcher_stops_every_rank_after_the_same_step_and_saves_it() {
    let workspace = Workspace::new("epochs = 1000\nbatch = 32\nsave-every = 1");
    // the launcher waits so long before it tells the ranks, and again before it kills them
    let job = workspace.begin(2, "run", &["--mca", "odls_base_sigkill_timeout", "2"], 3);
    signal("-INT", job.id());
    assert_stopped(&workspace, job, "run");
}

#[test]
fn a_stopped_job_goes_on_byte_for_byte() {
    let workspace =
        Workspace::new("epochs = 12\nbatch = 32\nsave-every = 1\nmix = { mixup = 0.8 }\nstochastic-depth = 0.2");
    workspace.finish(2, "straight");
    // one of them hears it, all of them stop
    let job = workspace.begin(2, "stopped", &[], 3);
    signal("-TERM", process_of(&job, 1));
    assert!((3..24).contains(&assert_stopped(&workspace, job, "stopped")));
    workspace.finish(2, "stopped");
    assert_eq!(workspace.records("stopped"), workspace.records("straight"));
    for file in ["best.safetensors", "last.safetensors", "checkpoint/last.json"] {
        let [one, other] = ["straight", "stopped"].map(|run| fs::read(workspace.path(run).join(file)).unwrap());
        assert!(one == other, "{file}");
    }
}

#[test]
fn a_killed_rank_ends_the_job_which_then_goes_on_from_its_checkpoint() {
    let workspace = Workspace::new("epochs = 1000\nbatch = 32\nsave-every = 1");
    for rank in [1, 0, 1] {
        let before = workspace.saved_step("run").unwrap_or(0);
        let job = workspace.begin(2, "run", &[], before + 2);
        signal("-KILL", process_of(&job, rank));
        let output = job.wait_with_output().unwrap();
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains(&format!("process rank {rank} ")), "{text}");
        assert_eq!(text.contains(&format!("resuming    after step {before}\n")), before > 0, "{text}");
    }
}

/// The job ends with this error alone.
#[track_caller]
fn assert_told(command: &mut Command, parts: &[&str]) {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert!(!output.status.success(), "{text}");
    assert_eq!(text.matches("error: ").count(), 1, "{text}");
    let line = text.lines().find(|line| line.contains("error: ")).unwrap();
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
}

#[test]
fn what_every_rank_finds_is_told_once() {
    let workspace = Workspace::new("epochs = 1\nbatch = 32\naccumulate = 2");
    let reason = "error: rank 0: `batch`: must be divisible by 3 ranks x 2 parts of a step, got 32";
    assert_told(&mut workspace.command(3, "run", &[]), &[reason]);
    let wild = ["--epochs", "50", "--set", "optimiser={ rule = 'sgd', rate = 1e3, decay = 1e3 }"];
    assert_told(workspace.command(2, "wild", &[]).args(wild), &["error: rank 0: step ", "the loss is "]);
}

#[test]
fn a_rank_that_fails_by_itself_names_itself_and_ends_the_job() {
    let workspace = Workspace::new("epochs = 1\nbatch = 24");
    let regard = env!("CARGO_BIN_EXE_regard");
    let other = [":", "-n", "1", regard, "train", "recipe.toml", "-o", "run", "--seed", "7"];
    let reason = "error: rank 2: its recipe has another `seed` than that of rank 0";
    assert_told(workspace.command(2, "run", &[]).args(other), &[reason]);
    for class in 0..3 {
        for number in 0..31 {
            fs::write(workspace.path("data").join(format!("class{class}/{number}.png")), "no picture").unwrap();
        }
    }
    assert_told(&mut workspace.command(2, "broken", &[]), &["error: rank ", ".png"]);
}
