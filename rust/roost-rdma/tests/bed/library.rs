//! The stub of libibverbs, compiled once for each test program.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

pub(crate) fn stub() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stub_verbs.c");
    let name = format!("libstub-verbs-{}.so", std::process::id());
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let command = [
        "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", source, "-o",
    ];
    let status = Command::new("cc").args(command).arg(&library).status();
    assert!(status.unwrap().success());
    library
}
