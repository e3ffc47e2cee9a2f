//! The vendors' own libraries on a machine without their devices: they load, they have the functions, and what they say
//! is told as it is. Each test is skipped, and says so, where its library is not.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test: what is skipped is said"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use roost_hip::library::Search;
use roost_hip::rccl::{Collectives, Options};
use roost_hip::{Choice, Gpu, GpuError, Platform};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// The folders of a wheel's libraries in the project's environment.
fn wheels(below: &str) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(root().join(".venv/lib"))
        .into_iter()
        .flatten()
        .flatten();
    let venv = versions.map(|version| version.path().join("site-packages"));
    venv.chain([root().join("target/cuda")])
        .map(|site| site.join(below))
        .filter(|folder| folder.exists())
        .collect()
}

#[test]
fn cudas_runtime_without_a_driver() {
    let search = Search {
        folders: wheels("nvidia/cu13/lib"),
    };
    if search.folders.is_empty() {
        println!("skipped: no libcudart here (it comes with torch)");
        return;
    }
    let api = Gpu::load(Platform::Cuda, &search).unwrap();
    if api.other_library().is_some() {
        println!("skipped: this machine has a driver");
        return;
    }
    let missing: Vec<_> = api
        .missing_functions()
        .into_iter()
        .filter(|name| name.starts_with("cuda"))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(api.versions().unwrap().0 >= 13000);
    let error = Gpu::open(Choice::Only(Platform::Cuda), &search).unwrap_err();
    assert!(matches!(error, GpuError::Unavailable { .. }));
    assert!(
        error
            .to_string()
            .contains("cudaGetDeviceCount returned 35 (cudaErrorInsufficientDriver)"),
        "{error}"
    );
    println!("{error}");
}

#[test]
fn nccl_without_a_driver() {
    let search = Search {
        folders: wheels("nvidia/nccl/lib"),
    };
    if search.folders.is_empty() {
        println!("skipped: no libnccl here (it comes with torch)");
        return;
    }
    let nccl = Collectives::open(Platform::Cuda, &search).unwrap();
    assert!(nccl.version() >= 22000, "{}", nccl.version());
    assert!(
        nccl.missing_functions().is_empty(),
        "{:?}",
        nccl.missing_functions()
    );
    let (one, two) = (nccl.unique_id().unwrap(), nccl.unique_id().unwrap());
    assert_ne!(one, two);
    for options in [
        Options::default(),
        Options {
            blocking: true,
            name: Some("test".to_owned()),
        },
    ] {
        let error = nccl
            .join(&one, 1, 0, &options)
            .and_then(|comm| comm.settle(Duration::from_secs(20)))
            .unwrap_err();
        println!("NCCL {} at {}: {error}", nccl.version(), nccl.library().display());
        assert!(error.code().is_some(), "{error}");
    }
}

/// Debian's libraries want a newer C library than the machine may have, so the test runs itself again under theirs.
#[test]
fn hips_runtime_without_a_device() {
    let folder = root().join("target/hip/rccl/usr/lib/x86_64-linux-gnu");
    let loader = folder.join("ld-linux-x86-64.so.2");
    if !loader.exists() {
        println!("skipped: no libamdhip64 here (scripts/hip-toolchain.sh fetches Debian's)");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut again = Command::new(loader);
    again.arg("--library-path").arg(&folder).arg(program);
    let ran = again
        .args(["--ignored", "--exact", "under_debians_loader", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    println!("{said}");
}

#[test]
#[ignore = "run by the test above, under another C library"]
fn under_debians_loader() {
    let api = Gpu::load(Platform::Rocm, &Search::default()).unwrap();
    let (runtime, _) = api.versions().unwrap();
    println!("HIP {runtime} lacks {:?}", api.missing_functions());
    let error = Gpu::open(Choice::Detect, &Search::default()).unwrap_err();
    assert!(matches!(error, GpuError::Unavailable { .. }));
    assert!(
        error
            .to_string()
            .contains("hipGetDeviceCount returned 100 (hipErrorNoDevice)"),
        "{error}"
    );
    println!("{error}");

    let rccl = Collectives::open(Platform::Rocm, &Search::default()).unwrap();
    println!("RCCL {} lacks {:?}", rccl.version(), rccl.missing_functions());
    assert!(rccl.unique_id().unwrap() != rccl.unique_id().unwrap());
    let error = rccl
        .join(&rccl.unique_id().unwrap(), 1, 0, &Options::default())
        .unwrap_err();
    println!("{error}");
    assert_eq!(error.code(), Some(1), "{error}");
}
