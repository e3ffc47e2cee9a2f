//! An owner in a process of its own, which can be killed.

use crate::bed::{open, pattern};
use roost_rdma::verbs::{Path, RemoteRegion};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const MARK: &str = "ROOST_TEST_OWNER";

/// The other process.
pub(crate) struct Owner {
    pub(crate) process: Child,
    said: BufReader<ChildStdout>,
    told: ChildStdin,
    pub(crate) card: Vec<u8>,
    pub(crate) region: RemoteRegion,
}

impl Owner {
    /// Starts one that has `bytes` of `pattern(1)`, on this device.
    pub(crate) fn start(device: &str, bytes: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["owner::owner_process", "--exact", "--nocapture"])
            .env(MARK, format!("{device} {bytes}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, told) = (
            BufReader::new(process.stdout.take().unwrap()),
            process.stdin.take().unwrap(),
        );
        let mut owner = Self {
            process,
            said,
            told,
            card: Vec::new(),
            region: RemoteRegion {
                base: 0,
                bytes: 0,
                keys: Vec::new(),
            },
        };
        owner.card = owner.hear();
        owner.region = RemoteRegion::decode(&owner.hear()).unwrap();
        owner
    }

    /// The answer to an offer.
    pub(crate) fn answer(&mut self, offer: &[u8]) -> Vec<u8> {
        writeln!(self.told, "{}", hex(offer)).unwrap();
        self.hear()
    }

    fn hear(&mut self) -> Vec<u8> {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the owner has ended");
            // The test harness prints too.
            if let Some((_, text)) = line.split_once('@') {
                return unhex(text.trim());
            }
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What runs there. In the tests themselves it does nothing.
#[test]
fn owner_process() {
    let Some(wanted) = std::env::var_os(MARK) else {
        return;
    };
    let wanted = wanted.into_string().unwrap();
    let (device, bytes) = wanted.split_once(' ').unwrap();
    let verbs = open(None, &[device]);
    let mut memory = pattern(1, bytes.parse().unwrap());
    let (address, bytes) = (memory.as_mut_ptr().expose_provenance(), memory.len() as u64);
    // SAFETY: the memory lives as long as this process serves.
    let published = unsafe { verbs.register(address, bytes) }.unwrap();
    println!(
        "\n@{}\n@{}",
        hex(&verbs.card()),
        hex(&published.remote().encode())
    );
    let mut serving = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let (path, answer) = Path::serve(&verbs, &unhex(&line.unwrap())).unwrap();
        serving.push(path);
        println!("\n@{}", hex(&answer));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}
