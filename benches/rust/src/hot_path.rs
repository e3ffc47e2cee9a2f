//! `hot-path SCENARIO ROUNDS`: calls and answers over the core and memory, for callgrind to count.

use std::process::ExitCode;

use roost_benches::MemoryPair;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let (window, bytes) = match arguments.get(1).map(String::as_str) {
        Some("call") => (1, 16),
        Some("window-of-100") => (100, 16),
        Some("call-with-4-KiB") => (1, 4096),
        _ => {
            eprintln!("usage: hot-path call|window-of-100|call-with-4-KiB ROUNDS");
            return ExitCode::FAILURE;
        }
    };
    let Some(rounds) = arguments.get(2).and_then(|rounds| rounds.parse().ok()) else {
        eprintln!("hot-path: ROUNDS is a number");
        return ExitCode::FAILURE;
    };
    let payload = vec![7; bytes];
    let mut pair = MemoryPair::default();
    for _ in 0..rounds {
        pair.round_trip(window, &payload);
    }
    ExitCode::SUCCESS
}
