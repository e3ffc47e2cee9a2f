//! What the crate declares of HIP, CUDA, HSA, RCCL and NCCL, held against the vendors' headers: a C++ program is made of the
//! crate's own tables, compiled against each set of headers that is here, and prints what the headers say.
//!
//! Headers come with the wheels of triton (HIP 7) and torch, and from `scripts/hip-toolchain.sh` and `cuda-toolchain.sh`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test: what fails is said, and what was compared too"
)]

mod probe;

use probe::{Difference, Headers, Probe};
use roost_hip::rocm_compat::{Runtime, attribute::Attribute, constant::CONSTANTS, layout::PLACES};
use roost_hip::symbols::Home;

/// What may differ, and why. All else fails.
const NAMED: &[(&str, &str)] = &[
    (
        "cudaGetDeviceProperties",
        "the structure has room for any version's",
    ),
    (
        "cudaPointerGetAttributes",
        "the structure has room for any version's",
    ),
];

/// Functions that headers before a version do not have.
const LATER: &[(&str, u32)] = &[
    ("hipMemGetHandleForAddressRange", 7),
    ("hipMemRangeHandleTypeDmaBufFd", 7),
];

fn hip_probe(major: u32) -> Probe {
    let mut probe = Probe::new();
    let is_there = |name: &str| {
        LATER
            .iter()
            .all(|(later, since)| *later != name || major >= *since)
    };
    for symbol in Runtime::symbols()
        .into_iter()
        .filter(|symbol| symbol.library != Home::Hsa)
    {
        if let Some(name) = symbol.rocm.filter(|name| is_there(name)) {
            probe.function(symbol.name, name, &symbol.shape);
        }
    }
    for constant in CONSTANTS.iter().filter(|constant| is_there(constant.hip)) {
        probe.constant(constant.hip, constant.value);
    }
    for attribute in Attribute::ALL {
        let (number, name) = attribute.hip();
        probe.constant(name, number.into());
    }
    for place in PLACES {
        probe.place(place.hip, place.bytes, place.room);
    }
    probe
}

fn cuda_probe() -> Probe {
    let mut probe = Probe::new();
    for symbol in Runtime::symbols() {
        if let Some(name) = symbol.cuda {
            probe.function(symbol.name, name, &symbol.shape);
        }
    }
    for constant in CONSTANTS {
        probe.constant(constant.cuda, constant.value);
    }
    for attribute in Attribute::ALL {
        let (number, name) = attribute.cuda();
        probe.constant(name, number.into());
    }
    for place in PLACES.iter().filter(|place| !place.cuda.is_empty()) {
        probe.place(place.cuda, place.bytes, place.room);
    }
    probe
}

fn report(headers: &Headers, compared: usize, differences: Vec<Difference>) {
    let (named, left): (Vec<_>, Vec<_>) = differences
        .into_iter()
        .partition(|difference| NAMED.iter().any(|(name, _)| *name == difference.name));
    println!(
        "{}: {compared} names compared, {} named differences, {} others",
        headers.name,
        named.len(),
        left.len()
    );
    for difference in &named {
        println!("  named: {difference}");
    }
    assert!(
        left.is_empty(),
        "{} differs from what is declared: {left:#?}",
        headers.name
    );
}

#[test]
fn hip_is_declared_as_its_headers_have_it() {
    let found = probe::hip();
    for headers in &found {
        let probe = hip_probe(headers.major);
        report(headers, probe.len(), probe.run(headers));
    }
    probe::say_if_none(&found, "HIP's");
}

#[test]
fn hsa_is_declared_as_its_headers_have_it() {
    let found = probe::hsa();
    for headers in &found {
        let mut probe = Probe::new();
        for symbol in Runtime::symbols()
            .into_iter()
            .filter(|symbol| symbol.library == Home::Hsa)
        {
            probe.function(symbol.name, symbol.name, &symbol.shape);
        }
        report(headers, probe.len(), probe.run(headers));
    }
    probe::say_if_none(&found, "HSA's");
}

#[test]
fn cuda_is_declared_as_its_headers_have_it() {
    let found = probe::cuda();
    for headers in &found {
        let probe = cuda_probe();
        report(headers, probe.len(), probe.run(headers));
    }
    probe::say_if_none(&found, "CUDA's");
}

#[test]
fn every_name_has_its_twin_or_says_why_not() {
    let lone: Vec<_> = Runtime::symbols()
        .iter()
        .filter(|s| s.rocm.is_none() || s.cuda.is_none())
        .map(|s| s.name)
        .collect();
    assert_eq!(
        lone,
        [
            "cuStreamWaitValue32",            // HIP's takes a mask more
            "hipStreamWaitValue32",           // that one
            "cuFlushGPUDirectRDMAWrites",     // HIP has no such call
            "hsa_amd_portable_export_dmabuf", // what ROCm had before 7
            "hsa_amd_portable_close_dmabuf",
        ]
    );
}

#[test]
fn a_wrong_declaration_is_found() {
    if let Some(headers) = probe::hip().first() {
        let mut probe = Probe::new();
        probe.function("cudaMalloc", "hipMalloc", "w32(p(p(v)))");
        probe.constant("hipErrorNotReady", 601);
        probe.place("sizeof(hipMemAccessDesc)", 16, false);
        let names: Vec<_> = probe
            .run(headers)
            .into_iter()
            .map(|difference| difference.name)
            .collect();
        assert_eq!(
            names,
            ["cudaMalloc", "hipErrorNotReady", "sizeof(hipMemAccessDesc)"]
        );
    }
}
