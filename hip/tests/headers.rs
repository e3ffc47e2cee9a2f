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
use roost_hip::rccl::table;
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
    (
        "ncclCommInitRankConfig",
        "the structure ends with 2.27's members and says so in its size",
    ),
    ("ncclCommSplit", "the same"),
    ("ncclCommShrink", "the same"),
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

/// The members of a configuration that are known here.
fn config_places(probe: &mut Probe) {
    macro_rules! member {
        ($($name:ident),*) => { $({
            let offset = std::mem::offset_of!(table::ncclConfig_t, $name);
            probe.place(concat!("offsetof(ncclConfig_t, ", stringify!($name), ")"), offset, false);
        })* };
    }
    member!(
        size,
        magic,
        version,
        blocking,
        cgaClusterSize,
        minCTAs,
        maxCTAs,
        netName,
        splitShare,
        trafficClass,
        commName
    );
    member!(collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs);
}

#[test]
fn nccl_and_rccl_are_declared_as_their_headers_have_them() {
    let (nccl, rccl) = (probe::nccl(), probe::rccl());
    for headers in nccl.iter().chain(&rccl) {
        let mut probe = Probe::new();
        let (is_nccl, old) = (headers.name.starts_with("NCCL"), headers.major < 214);
        for symbol in table::Functions::symbols() {
            // RCCL 2.13 is the newest whose header is to be had from packages: it has the core and a little more.
            if !old || table::CORE.contains(&symbol.name) || symbol.name == "ncclAlltoAll" {
                let name = if is_nccl { symbol.cuda } else { symbol.rocm };
                probe.function(symbol.name, name.expect("both have it"), &symbol.shape);
            }
        }
        let younger = ["ncclInProgress", "NCCL_CONFIG_UNDEF_INT", "NCCL_SPLIT_NOCOLOR"];
        for (name, value) in table::CONSTANTS
            .iter()
            .filter(|(name, _)| !old || !younger.contains(name))
        {
            probe.constant(name, *value);
        }
        if !old {
            probe.constant("NCCL_API_MAGIC", table::NCCL_API_MAGIC.into());
            config_places(&mut probe);
        }
        report(headers, probe.len(), probe.run(headers));
    }
    probe::say_if_none(&nccl, "NCCL's");
    probe::say_if_none(&rccl, "RCCL's");
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
