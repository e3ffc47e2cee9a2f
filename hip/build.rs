//! Compiles the kernels for AMD's architectures when a HIP compiler is here, and leaves them out, saying so, when none is:
//! the crate is whole without them, since the host's path has the same bits.
//!
//! The compiler is `ROOST_HIPCC`, else the one that `scripts/hip-toolchain.sh` has put under `target/hip`, else hipcc of
//! ROCm; with nvcc, `ROOST_NVCC` or `scripts/cuda-toolchain.sh`'s, the same sources are compiled for NVIDIA's cards too. What it says of registers is kept beside each code object, and a trap in one fails the build: HIP's fp8 types
//! have compiled to a bare `s_trap` before, without a word.

#![allow(
    clippy::disallowed_methods,
    reason = "a build script is configured by its environment"
)]

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const ARCHITECTURES: [&str; 3] = ["gfx90a", "gfx942", "gfx950"];
const NVIDIA: &str = "sm_90";

/// Products and sums stay apart, so that the bits are those of the host. Version 5 of code objects is read by every ROCm 6
/// and 7. No unique id: the same source gives the same bytes.
const FLAGS: [&str; 10] = [
    "--cuda-device-only",
    "--no-gpu-bundle-output",
    "-O3",
    "-std=c++17",
    "-ffp-contract=off",
    "-fuse-cuid=none",
    "-mcode-object-version=5",
    "-Rpass-analysis=kernel-resource-usage",
    "-Wall",
    "-Werror",
];

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let source = manifest.join("kernels/roost.hip");
    let target = manifest.parent().unwrap_or(&manifest).join("target");
    println!("cargo::rerun-if-changed=kernels");
    let mut objects = Vec::new();
    let mut missing = String::new();
    if let Some(compiler) = find(
        "ROOST_HIPCC",
        &target.join("hip/bin/hipclang"),
        "/opt/rocm/bin/hipcc",
    ) {
        objects.extend(
            ARCHITECTURES.map(|architecture| (architecture, compile(&compiler, &source, &out, architecture))),
        );
    } else {
        missing.push_str("no HIP compiler is here, so the kernels were left out: `make hip` fetches one, ROOST_HIPCC names one");
        println!("cargo::warning={missing}");
    }
    if let Some(nvcc) = find(
        "ROOST_NVCC",
        &target.join("cuda/nvidia/cu13/bin/nvcc"),
        "/usr/local/cuda/bin/nvcc",
    ) {
        objects.push((NVIDIA, compile_cubin(&nvcc, &source, &out)));
    }
    let mut table = String::new();
    for (architecture, object) in objects {
        let (remarks, image) = (object.with_extension("remarks"), object.display().to_string());
        let remarks = remarks.display().to_string();
        let entry = format!(
            "architecture: {architecture:?}, image: include_bytes!({image:?}), remarks: include_str!({remarks:?})"
        );
        writeln!(table, "    CodeObject {{ {entry} }},").expect("text grows");
    }
    let text = format!(
        "pub(super) const OBJECTS: &[CodeObject] = &[\n{table}];\npub(super) const MISSING: &str = {missing:?};\n"
    );
    std::fs::write(out.join("objects.rs"), text).expect("OUT_DIR is writable");
}

/// A compiler by the variable that names it, where a script has put it, or where it is usually installed.
fn find(name: &str, fetched: &Path, installed: &str) -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed={name}");
    println!("cargo::rerun-if-changed={}", fetched.display());
    let candidates = [
        env::var_os(name).map(PathBuf::from),
        Some(fetched.to_path_buf()),
        Some(PathBuf::from(installed)),
    ];
    candidates.into_iter().flatten().find(|path| path.exists())
}

fn variable(name: &str) -> String {
    env::var(name).expect("cargo sets it")
}

/// One architecture's code object; beside it the compiler's remarks. The assembly that it was made of is looked through.
fn compile(compiler: &Path, source: &Path, out: &Path, architecture: &str) -> PathBuf {
    let folder = out.join(architecture);
    std::fs::create_dir_all(&folder).expect("OUT_DIR is writable");
    let object = folder.join("roost.co");
    let mut command = Command::new(compiler);
    command
        .args(FLAGS)
        .arg(format!("--offload-arch={architecture}"))
        .args(["-save-temps=obj", "-c"])
        .arg(source)
        .arg("-o")
        .arg(&object);
    std::fs::write(object.with_extension("remarks"), said(command, architecture))
        .expect("OUT_DIR is writable");
    let files = std::fs::read_dir(&folder)
        .expect("it was just made")
        .flatten()
        .map(|entry| entry.path());
    let assembly: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "s"))
        .collect();
    assert!(
        !assembly.is_empty(),
        "the compiler left no assembly in {}",
        folder.display()
    );
    for path in assembly {
        let text = std::fs::read_to_string(&path).expect("it was just written");
        assert!(
            !text.contains("s_trap"),
            "a kernel for {architecture} has a trap in it: see {}",
            path.display()
        );
    }
    object
}

/// The same for NVIDIA's cards: an ELF file too, which is loaded by the same call.
fn compile_cubin(nvcc: &Path, source: &Path, out: &Path) -> PathBuf {
    let object = out.join(format!("roost.{NVIDIA}.cubin"));
    let mut command = Command::new(nvcc);
    command
        .args(["-cubin", "-O3", "-std=c++17", "--fmad=false", "-x", "cu"])
        .arg(format!("-arch={NVIDIA}"));
    command.arg(source).arg("-o").arg(&object);
    std::fs::write(object.with_extension("remarks"), said(command, NVIDIA)).expect("OUT_DIR is writable");
    object
}

/// What a compiler says when all went well.
fn said(mut command: Command, architecture: &str) -> String {
    let made = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} does not run: {error}"));
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "the kernels for {architecture}:\n{said}");
    said
}
