//! Starting the kernels, end to end: the launch on the stand-in for HIP runs the same sources, compiled for the host.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test: what is skipped is said"
)]

mod standin;

use std::path::Path;
use std::process::Command;

use roost_hip::kernels::{
    Bucket, Format, Fp8, Kernels, Outer, Piece, Rows, checksum_of, finish_checksum, objects,
};
use roost_hip::library::{Library, Search};
use roost_hip::stream::Stream;
use roost_hip::{Choice, Gpu, Platform};

/// The kernels on a device of the stand-in's, whose memory is the host's.
fn setting() -> Option<(Kernels, Stream)> {
    if objects().iter().all(|object| object.architecture != "gfx942") {
        println!("skipped: the build had no HIP compiler");
        return None;
    }
    let folder = standin::build("gpu.c", "launch", "libamdhip64.so.7", &["-DROCM"]);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/roost.hip");
    let mut compiler = Command::new("c++");
    compiler.args([
        "-x",
        "c++",
        "-DROOST_ON_HOST",
        "-std=c++17",
        "-O1",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
    ]);
    let made = compiler
        .args(["-fPIC", "-shared"])
        .arg(sources)
        .arg("-o")
        .arg(folder.join("libkernels.so"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let search = Search {
        folders: vec![folder],
    };
    let gpu = Gpu::open(Choice::Only(Platform::Rocm), &search).unwrap();
    let standin = Library::open("libamdhip64", &["libamdhip64.so.7"], &search).unwrap();
    let host = Library::open("libkernels", &["libkernels.so"], &search).unwrap();
    let place = standin.symbol("standin_kernels").cast::<*mut std::ffi::c_void>();
    assert!(!place.is_null() && !host.symbol("roost_host_run").is_null());
    // SAFETY: the stand-in has a pointer to a function of this signature there, which no one else touches.
    unsafe { place.write(host.symbol("roost_host_run")) };
    let device = gpu.device(0).unwrap();
    Some((Kernels::new(&device).unwrap(), device.stream().unwrap()))
}

fn address<T>(numbers: &[T]) -> usize {
    numbers.as_ptr() as usize
}

#[test]
fn every_launch_does_what_its_kernel_does() {
    let Some((kernels, stream)) = setting() else {
        return;
    };
    packing(&kernels, &stream);
    eight_bits(&kernels, &stream);
    outer(&kernels, &stream);
    checksum(&kernels, &stream);
}

fn packing(kernels: &Kernels, stream: &Stream) {
    let (one, two) = (vec![1.5_f32; 40_000], vec![-2.25_f32; 33]);
    let bucket = vec![0_u16; 40_100];
    let on = Bucket {
        address: address(&bucket),
        elements: 40_100,
        format: Some(Format::Bf16),
    };
    let pieces = [
        Piece {
            tensor: address(&one),
            start: 7,
            count: 40_000,
        },
        Piece {
            tensor: address(&two),
            start: 40_050,
            count: 33,
        },
    ];
    // SAFETY: here and below, all vectors outlive the work, which is waited for.
    unsafe { kernels.pack(&pieces, Some(Format::F32), on, false, 2.0, stream) }
        .unwrap()
        .wait()
        .unwrap();
    let (three, minus) = (0x4040_u16, 0xc090_u16);
    assert!(
        bucket[7..40_007].iter().all(|bits| *bits == three)
            && bucket[40_050..40_083].iter().all(|bits| *bits == minus)
    );
    assert!(bucket[..7].iter().chain(&bucket[40_083..]).all(|bits| *bits == 0));
    let back = [vec![0.0_f32; 40_000], vec![0.0_f32; 33]];
    let pieces = [
        Piece {
            tensor: address(&back[0]),
            start: 7,
            count: 40_000,
        },
        Piece {
            tensor: address(&back[1]),
            start: 40_050,
            count: 33,
        },
    ];
    // SAFETY: as above.
    unsafe { kernels.pack(&pieces, Some(Format::F32), on, true, 0.5, stream) }
        .unwrap()
        .wait()
        .unwrap();
    assert!(back[0] == one && back[1] == two);
    for (start, why) in [(39_000, "begins before"), (40_090, "passes the end")] {
        let wrong = [pieces[0], Piece { start, ..pieces[1] }];
        // SAFETY: it is refused.
        let error = unsafe { kernels.pack(&wrong, Some(Format::F32), on, false, 1.0, stream) }.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn eight_bits(kernels: &Kernels, stream: &Stream) {
    let numbers: Vec<f32> = (0..300_u16).map(|i| f32::from(i % 150) - 70.0).collect();
    let (codes, scales, back) = (vec![0_u8; 300], vec![0.0_f32; 3], vec![0.0_f32; 300]);
    for fp8 in [Fp8::Ocp, Fp8::Fnuz] {
        let rows = Rows {
            numbers: address(&numbers),
            format: Format::F32,
            rows: 3,
            columns: 100,
            stride: 100,
            codes: address(&codes),
            fp8,
            scales: address(&scales),
        };
        // SAFETY: as in `packing`.
        unsafe { kernels.quantise(&rows, false, stream) }
            .unwrap()
            .wait()
            .unwrap();
        let most = if fp8 == Fp8::Ocp { 448.0 } else { 240.0 };
        assert!((scales[0] - 70.0 / most).abs() < 1e-6, "{scales:?}");
        let rows = Rows {
            numbers: address(&back),
            ..rows
        };
        // SAFETY: as above.
        unsafe { kernels.dequantise(&rows, stream) }
            .unwrap()
            .wait()
            .unwrap();
        assert!(
            numbers
                .iter()
                .zip(&back)
                .all(|(a, b)| (a - b).abs() <= a.abs() / 16.0 + 0.01)
        );
    }
}

fn outer(kernels: &Kernels, stream: &Stream) {
    let (parameters, velocity) = (vec![1.0_f32; 1001], vec![0.5_f32; 1001]);
    let (local, gradient) = (vec![0.75_f32; 1001], vec![0.0_f32; 1001]);
    let on = Outer {
        outer: address(&parameters),
        velocity: address(&velocity),
        local: address(&local),
        format: Format::F32,
        count: 1001,
        share: 0.5,
        rate: 0.5,
        momentum: 0.5,
    };
    // SAFETY: as in `packing`.
    unsafe { kernels.pseudo_gradient(&on, (address(&gradient), Format::F32), stream) }
        .unwrap()
        .wait()
        .unwrap();
    assert!(gradient.iter().all(|slope| slope.to_bits() == 0.25_f32.to_bits()));
    // SAFETY: as above.
    unsafe { kernels.outer_step(&on, (Some(address(&gradient)), Format::F32), stream) }
        .unwrap()
        .wait()
        .unwrap();
    // The slope is 0.125, the speed 0.375, the step 0.15625.
    let wanted = [0.375_f32, 0.843_75, 0.843_75].map(f32::to_bits);
    assert!((0..1001).all(|i| [velocity[i], parameters[i], local[i]].map(f32::to_bits) == wanted));
    // SAFETY: as above.
    unsafe { kernels.outer_step(&on, (None, Format::F32), stream) }
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(
        velocity[1000].to_bits(),
        0.1875_f32.to_bits(),
        "the local parameters were the outer ones"
    );
}

fn checksum(kernels: &Kernels, stream: &Stream) {
    let memory: Vec<u8> = (0..100_003_u32).map(|i| (i * 7 % 251) as u8).collect();
    let sum = stream.device().allocate(8).unwrap();
    sum.write(&[0; 8]).unwrap();
    // In two parts, which the device adds up.
    for (begin, end) in [(50_000, memory.len()), (0, 50_000)] {
        let part = &memory[begin..end];
        // SAFETY: as in `packing`.
        unsafe { kernels.checksum(address(part), part.len() as u64, begin as u64 / 8, &sum, stream) }
            .unwrap()
            .wait()
            .unwrap();
    }
    let mut bytes = [0; 8];
    sum.read(&mut bytes).unwrap();
    let found = u64::from_le_bytes(bytes);
    assert_eq!(found, checksum_of(&memory, 0), "the host and the device agree");
    assert_ne!(finish_checksum(found, 100_003), finish_checksum(found, 100_004));
}
