//! Replays the fuzz corpus, so that nothing that was found once comes back unseen.

use std::path::Path;

#[expect(unreachable_pub, reason = "a library of its own where it is fuzzed")]
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

/// Runs one target on each of its files; says which one when it fails.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let files = std::fs::read_dir(&folder).expect("the target has a corpus");
    let mut count = 0;
    for file in files {
        let path = file.expect("a readable folder").path();
        let bytes = std::fs::read(&path).expect("a readable file");
        let fine = std::panic::catch_unwind(|| run(&bytes)).is_ok();
        assert!(fine, "{} fails", path.display());
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

#[test]
fn frame() {
    replay("frame", targets::frame);
}

#[test]
fn hello() {
    replay("hello", targets::hello);
}

#[test]
fn session() {
    replay("session", targets::session);
}

#[test]
fn control() {
    replay("control", targets::control);
}

#[test]
fn stranger() {
    replay("stranger", targets::stranger);
}
