//! The embedded code objects: there are all kernels for all architectures, none spills, none traps. Skipped, and said, where
//! the build had no HIP compiler. `make hip` shows the table.

#![allow(clippy::print_stdout, reason = "a test that reports registers and sizes")]

use roost_hip::kernels::{CodeObject, objects};

/// The number of the architecture in the ELF header's flags.
const MACHINES: [(&str, u8); 3] = [("gfx90a", 0x3f), ("gfx942", 0x4c), ("gfx950", 0x4f)];
const KERNELS: usize = 41;

#[test]
fn every_kernel_is_there_for_every_architecture_and_none_spills() {
    if objects().is_empty() {
        println!("skipped: the build had no HIP compiler");
        return;
    }
    for (architecture, machine) in MACHINES {
        let object = objects()
            .iter()
            .find(|object| object.architecture == architecture)
            .expect("compiled for it");
        assert_eq!(&object.image[..4], b"\x7fELF");
        assert_eq!(
            object.image[0x30], machine,
            "{architecture}: the flags name another"
        );
        assert_eq!(
            object.image[8], 3,
            "{architecture}: not version 5 of code objects"
        );
        report(object);
    }
    // Where nvcc was there too: the same kernels for NVIDIA's cards.
    for object in objects()
        .iter()
        .filter(|object| object.architecture.starts_with("sm_"))
    {
        assert_eq!(&object.image[..4], b"\x7fELF");
        let name = b"roost_quantise_bf16_ocp";
        assert!(
            object.image.windows(name.len()).any(|part| part == name),
            "{}",
            object.architecture
        );
        println!("{}: {} bytes", object.architecture, object.image.len());
    }
}

fn report(object: &CodeObject) {
    let all = object.resources();
    println!(
        "{}: {} bytes, {} kernels",
        object.architecture,
        object.image.len(),
        all.len()
    );
    println!(
        "  {:<40} {:>5} {:>5} {:>6} {:>7}",
        "kernel", "VGPR", "SGPR", "waves", "shared"
    );
    for one in &all {
        println!(
            "  {:<40} {:>5} {:>5} {:>6} {:>7}",
            one.kernel, one.vector_registers, one.scalar_registers, one.waves, one.shared_bytes
        );
        assert_eq!(
            one.scratch_bytes, 0,
            "{} spills for {}",
            one.kernel, object.architecture
        );
        assert!(
            one.waves >= 4,
            "{} has room for {} waves on {}",
            one.kernel,
            one.waves,
            object.architecture
        );
        let name = one.kernel.as_bytes();
        assert!(
            object.image.windows(name.len()).any(|part| part == name),
            "{} is not in the object",
            one.kernel
        );
    }
    assert_eq!(all.len(), KERNELS);
}
