//! Ranks as processes, and the parent's side of them.

pub(crate) mod child;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::standin;
use roost_hip::Platform;
use roost_hip::library::Search;
use roost_hip::rccl::Collectives;

/// A group of ranks of one test.
pub(crate) struct Group {
    ranks: Vec<Rank>,
    folder: PathBuf,
    collectives: Collectives,
    /// Of the shared memory of every group that was begun.
    names: Vec<String>,
}

struct Rank {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// How often a rank is killed: `ROOST_TEST_ROUNDS=200` is the long form.
pub(crate) fn rounds() -> usize {
    std::env::var("ROOST_TEST_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(5)
}

pub(crate) fn median_and_p99(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (
        times[times.len() / 2],
        times[(times.len() * 99).div_ceil(100) - 1],
    )
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Group {
    pub(crate) fn start(ranks: usize, does: &str, faults: &'static str) -> Self {
        Self::start_with(ranks, does, |_| faults)
    }

    pub(crate) fn start_with(ranks: usize, does: &str, faults: impl Fn(usize) -> &'static str) -> Self {
        static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
        let folder = BUILT
            .get_or_init(|| standin::build("nccl.c", "nccl", "libnccl.so.2", &[]))
            .clone();
        let collectives = Collectives::open(
            Platform::Cuda,
            &Search {
                folders: vec![folder.clone()],
            },
        )
        .unwrap();
        let mut group = Self {
            ranks: Vec::new(),
            folder,
            collectives,
            names: Vec::new(),
        };
        let id = group.new_id();
        for rank in 0..ranks {
            let started = group.spawn(rank, ranks, does, faults(rank), &id);
            group.ranks.push(started);
        }
        group
    }

    pub(crate) fn new_id(&mut self) -> String {
        let id = self.collectives.unique_id().unwrap().0;
        let name: Vec<_> = id[1..].iter().copied().take_while(|byte| *byte != 0).collect();
        self.names.push(String::from_utf8(name).unwrap());
        hex(&id)
    }

    fn spawn(&self, rank: usize, ranks: usize, does: &str, faults: &str, id: &str) -> Rank {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "rank", "--nocapture", "--test-threads=1"]);
        command
            .env("ROOST_TEST_RANK", format!("{rank} {ranks} {id}"))
            .env("ROOST_TEST_DOES", does);
        command
            .env("ROOST_TEST_FOLDER", &self.folder)
            .env("ROOST_STANDIN", faults);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        let from = BufReader::new(process.stdout.take().unwrap());
        Rank { process, to, from }
    }

    pub(crate) fn restart(&mut self, rank: usize, does: &str, id: &str) {
        self.ranks[rank] = self.spawn(rank, self.ranks.len(), does, "", id);
    }

    pub(crate) fn tell(&mut self, rank: usize, line: &str) {
        writeln!(self.ranks[rank].to, "{line}").unwrap();
    }

    /// Waits until a rank says this word, and returns what it says with it.
    pub(crate) fn wait(&mut self, rank: usize, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.ranks[rank].from.read_line(&mut line).unwrap();
            assert!(read > 0, "rank {rank} ended before it said {word:?}");
            // The harness writes the test's name before the first line.
            if let Some(said) = line
                .split_once("roost ")
                .and_then(|(_, said)| said.strip_prefix(word))
            {
                return said.trim().to_owned();
            }
            assert!(!line.contains("panicked"), "rank {rank}: {line}");
        }
    }

    pub(crate) fn wait_all(&mut self, word: &str) -> Vec<String> {
        (0..self.ranks.len()).map(|rank| self.wait(rank, word)).collect()
    }

    pub(crate) fn kill(&mut self, rank: usize) {
        self.ranks[rank].process.kill().unwrap();
        self.ranks[rank].process.wait().unwrap();
    }

    /// Ends all, and takes away the shared memory that the killed have left: its name is that of the group, and more behind
    /// it for what was split off.
    pub(crate) fn end(self) {
        for mut rank in self.ranks {
            drop(rank.to);
            let _ = rank.process.kill();
            rank.process.wait().unwrap();
        }
        for left in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            let file = left.file_name().to_string_lossy().into_owned();
            if self
                .names
                .iter()
                .any(|name| file == *name || file.starts_with(&format!("{name}.")))
            {
                let _ = std::fs::remove_file(left.path());
            }
        }
    }
}
