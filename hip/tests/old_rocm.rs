//! ROCm before 7 on stand-ins, with two copies of the runtime in the process: a dma-buf comes from the HSA library, and
//! the copy that is used says where the other is.

#![allow(clippy::unwrap_used, reason = "a test")]

mod standin;

use roost_hip::export::Exporter;
use roost_hip::library::{Library, Search, loaded_copies};
use roost_hip::memory::Owner;
use roost_hip::{Choice, Gpu, Platform};
use standin::StandIn;

#[test]
fn two_copies_and_the_hsa_library() {
    let folder = standin::build(
        "gpu.c",
        "old",
        "libamdhip64.so.5",
        &["-DROCM", "-DWITHOUT_RANGE_HANDLE"],
    );
    standin::build("hsa.c", "old", "libhsa-runtime64.so.1", &[]);
    std::fs::copy(
        folder.join("libamdhip64.so.5"),
        folder.join("libamdhip64-9c2f4a.so.5"),
    )
    .unwrap();
    // As a wheel does it: under a name that no one else would open.
    let search = Search {
        folders: vec![folder.clone()],
    };
    let first = Library::open("none", &["libamdhip64-9c2f4a.so.5"], &search).unwrap();
    let second = Library::open("none", &["libamdhip64.so.5"], &search).unwrap();
    assert_eq!(loaded_copies("libamdhip64").len(), 2);

    // The copy that the process loaded first is found without being told where, and without another choice.
    let gpu = Gpu::open(Choice::Detect, &Search::default()).unwrap();
    assert_eq!(gpu.platform(), Platform::Rocm);
    let copies = gpu.copies().unwrap();
    assert!(copies.used.ends_with("libamdhip64-9c2f4a.so.5"), "{copies}");
    assert_eq!(copies.others, [folder.join("libamdhip64.so.5")]);
    assert!(
        copies.to_string().contains("two copies")
            && copies.to_string().contains("libamdhip64.so.5 is loaded too")
    );

    let standin = StandIn::of("libamdhip64", "libamdhip64.so.5", &folder);
    standin.set("standin_runtime_version", 50_731_921);
    let memory = gpu.device(0).unwrap().allocate(4096).unwrap();
    assert_eq!(
        gpu.owner_of(memory.address()).unwrap(),
        Owner::Device(0),
        "kinds were numbered otherwise before 6"
    );
    let exporter = Exporter::new(gpu.clone());
    let (_descriptor, offset) = exporter.dma_buf(memory.address(), 4096).unwrap();
    assert_eq!(offset, 4096);
    let large = gpu.device(0).unwrap().allocate(1 << 20).unwrap();
    let error = exporter.dma_buf(large.address(), 1 << 20).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("hsa_amd_portable_export_dmabuf returned 4097"),
        "{error}"
    );
    drop((first, second));
}
