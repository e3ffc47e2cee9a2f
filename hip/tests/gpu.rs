//! The safe face over HIP and over CUDA, on stand-ins for their libraries. Each platform is one test, since the libraries
//! keep one state in the process.

#![allow(clippy::unwrap_used, reason = "a test")]

mod standin;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roost_hip::export::Exporter;
use roost_hip::kernels::objects;
use roost_hip::library::Search;
use roost_hip::memory::{Kind, Owner, allocate_host};
use roost_hip::rocm_compat::attribute::Attribute;
use roost_hip::{Choice, Gpu, GpuError, Platform};
use standin::StandIn;

struct Setting {
    gpu: Gpu,
    standin: StandIn,
    rocm: bool,
    search: Search,
}

impl Setting {
    fn new(platform: Platform) -> Self {
        let rocm = platform == Platform::Rocm;
        let (folder, file, stem) = if rocm {
            (
                standin::build("gpu.c", "rocm", "libamdhip64.so.7", &["-DROCM"]),
                "libamdhip64.so.7",
                "libamdhip64",
            )
        } else {
            let folder = standin::build("gpu.c", "cuda", "libcudart.so.13", &["-DDRIVER"]);
            // Runtime and driver share a state, as the real ones do: one file under both names.
            std::fs::copy(folder.join("libcudart.so.13"), folder.join("whole")).unwrap();
            std::fs::remove_file(folder.join("libcudart.so.13")).unwrap();
            for name in ["libcudart.so.13", "libcuda.so.1"] {
                let _ = std::fs::remove_file(folder.join(name));
                std::os::unix::fs::symlink(folder.join("whole"), folder.join(name)).unwrap();
            }
            (folder, "libcudart.so.13", "libcudart")
        };
        let search = Search {
            folders: vec![folder.clone()],
        };
        let gpu = Gpu::open(Choice::Only(platform), &search).unwrap();
        Self {
            gpu,
            standin: StandIn::of(stem, file, &folder),
            rocm,
            search,
        }
    }

    /// A function's name with this vendor.
    fn name(&self, hip: &'static str, cuda: &'static str) -> &'static str {
        if self.rocm { hip } else { cuda }
    }

    fn live(&self) -> i32 {
        self.standin.get("standin_live_blocks")
    }
}

#[test]
fn rocm() {
    all(&Setting::new(Platform::Rocm));
}

#[test]
fn cuda() {
    all(&Setting::new(Platform::Cuda));
}

fn all(setting: &Setting) {
    devices(setting);
    errors(setting);
    memory(setting);
    streams(setting);
    between_processes(setting);
    exporting(setting);
    modules(setting);
    assert_eq!(setting.live(), 0, "nothing was leaked");
    without_a_device(setting);
}

fn devices(setting: &Setting) {
    let device = setting.gpu.device(1).unwrap();
    assert_eq!(device.name().unwrap(), "Stand-in 1");
    assert_eq!(device.architecture().unwrap(), setting.name("gfx942", "sm_90"));
    assert_eq!(
        device.attribute(Attribute::WarpSize).unwrap(),
        if setting.rocm { 64 } else { 32 }
    );
    assert_eq!(device.attribute(Attribute::MultiprocessorCount).unwrap(), 304);
    assert_eq!(device.pci_address().unwrap(), "0000:c1:00.0");
    assert_eq!(device.uuid().unwrap(), [b'b'; 16]);
    assert_eq!(device.memory_bytes().unwrap(), (100, 200));
    assert_eq!(
        setting.gpu.current_device().unwrap().number(),
        0,
        "the thread's device was put back"
    );
    let other = setting.gpu.device(0).unwrap();
    assert!(device.can_access(&other).unwrap());
    device.enable_access(&other).unwrap();
    device.enable_access(&other).unwrap();
    let missing = setting.gpu.device(2).unwrap_err();
    assert_eq!(missing.to_string(), "there is no device 2: this process sees 2");
}

fn errors(setting: &Setting) {
    let device = setting.gpu.device(0).unwrap();
    let error = device.allocate(1 << 41).unwrap_err();
    let function = setting.name("hipMalloc", "cudaMalloc");
    assert_eq!(
        error.to_string(),
        format!("{function} returned 2 (standinErrorOutOfMemory): as the test wanted")
    );
    // Whoever asks next, torch say, is not told of it.
    let peek = setting.name("hipPeekAtLastError", "cudaPeekAtLastError");
    assert_eq!(setting.standin.call(peek), 0, "the error was taken back");
    let event = device.event().unwrap();
    setting.standin.set("standin_held", 1);
    assert!(!event.has_come().unwrap());
    assert_eq!(setting.standin.call(peek), 0, "not ready is no error");
    event.wait().unwrap();
    assert!(event.has_come().unwrap());
}

fn memory(setting: &Setting) {
    let device = setting.gpu.device(0).unwrap();
    let stream = device.stream().unwrap();
    let (one, two) = (
        device.allocate(1000).unwrap(),
        setting.gpu.device(1).unwrap().allocate(1000).unwrap(),
    );
    let pinned = allocate_host(Some(&setting.gpu), 1000).unwrap();
    assert_eq!((one.kind(), pinned.kind()), (Kind::Device, Kind::Pinned));
    assert_eq!(
        setting.gpu.owner_of(one.address() + 999).unwrap(),
        Owner::Device(0)
    );
    assert_eq!(setting.gpu.owner_of(pinned.address()).unwrap(), Owner::Pinned);
    assert_eq!(
        setting.gpu.owner_of((&raw const stream) as usize).unwrap(),
        Owner::Host
    );
    let bytes: Vec<u8> = (0..1000_u32).map(|i| (i % 251) as u8).collect();
    pinned.write(&bytes).unwrap();
    pinned.copy_to(&one, &stream).unwrap().wait().unwrap();
    one.copy_to(&two, &stream).unwrap().wait().unwrap();
    let mut back = vec![0; 500];
    two.slice(250..750).unwrap().read(&mut back).unwrap();
    assert_eq!(back, bytes[250..750]);
    assert!(one.slice(999..1001).is_err() && one.slice(usize::MAX..usize::MAX).is_err());
    assert!(one.copy_to(&two.slice(1..1000).unwrap(), &stream).is_err());

    // The block lives as long as a copy that uses it.
    let before = setting.live();
    setting.standin.set("standin_held", 1);
    let filling = one.fill(7, &stream).unwrap();
    drop(one);
    assert!(!filling.is_done().unwrap());
    assert_eq!(setting.live(), before);
    drop(filling);
    assert_eq!(
        (setting.live(), setting.standin.get("standin_held")),
        (before - 1, 0),
        "dropping it waited"
    );

    // Where nothing can be pinned, memory is plain, and the same calls work.
    setting
        .standin
        .fail(setting.name("hipHostMalloc", "cudaHostAlloc"), 100);
    let plain = allocate_host(Some(&setting.gpu), 100).unwrap();
    setting.standin.fail("", 0);
    assert_eq!(plain.kind(), Kind::Plain);
    plain.write(&bytes[..100]).unwrap();
    let mut back = [0; 100];
    plain.read(&mut back).unwrap();
    assert_eq!(back, bytes[..100]);
    let room = [0_u8; 64];
    // SAFETY: the array outlives the registration, and nothing is copied.
    drop(unsafe { setting.gpu.register(room.as_ptr() as usize, 64) }.unwrap());
}

fn streams(setting: &Setting) {
    let device = setting.gpu.device(0).unwrap();
    let stream = device.stream().unwrap();
    let called = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&called);
    stream.then(move || seen.store(true, Ordering::Relaxed)).unwrap();
    assert!(called.load(Ordering::Relaxed));
    stream
        .then(|| panic!("in a callback: it must not unwind into C"))
        .unwrap();
    setting
        .standin
        .fail(setting.name("hipLaunchHostFunc", "cudaLaunchHostFunc"), 1);
    let kept = Arc::clone(&called);
    assert!(stream.then(move || drop(kept)).is_err());
    assert_eq!(Arc::strong_count(&called), 1, "what is refused is dropped");
    setting.standin.fail("", 0);
    let word = device.allocate(4).unwrap();
    stream.write_value(&word, 9).unwrap().wait().unwrap();
    stream.wait_value(&word, 9).unwrap().wait().unwrap();
    if setting.rocm {
        assert_eq!(setting.standin.get("standin_mask"), -1, "all bits count");
    }
    assert!(stream.wait_value(&device.allocate(8).unwrap(), 9).is_err());
    stream.wait_for(&device.event().unwrap()).unwrap();
    assert!(stream.is_idle().unwrap());
}

fn between_processes(setting: &Setting) {
    use std::os::fd::AsFd;
    let device = setting.gpu.device(0).unwrap();
    let memory = device.allocate(256).unwrap();
    let handle = memory.slice(64..128).unwrap().share().unwrap();
    let there = device.import(&handle).unwrap();
    assert_eq!(
        (there.kind(), there.len(), handle.offset),
        (Kind::Imported, 64, 64)
    );
    there.write(&[5; 64]).unwrap();
    let mut back = [0; 256];
    memory.read(&mut back).unwrap();
    assert_eq!((back[63], back[64], back[127], back[128]), (0, 5, 5, 0));
    assert!(there.share().is_err());

    for version in if setting.rocm {
        vec![60_443_484, 70_253_211]
    } else {
        vec![13_000]
    } {
        // HIP before 7.1 follows a pointer to the descriptor, since then it takes the number.
        setting.standin.set("standin_runtime_version", version);
        let physical = device.physical(100).unwrap();
        assert_eq!(physical.len(), 1 << 16);
        let again = device
            .import_physical(physical.export().unwrap().as_fd(), physical.len())
            .unwrap();
        let (here, there) = (physical.map().unwrap(), again.map().unwrap());
        here.write(b"the same memory").unwrap();
        let mut back = [0; 15];
        there.read(&mut back).unwrap();
        assert_eq!((&back, here.kind()), (b"the same memory", Kind::Mapped));
    }
}

fn exporting(setting: &Setting) {
    let exporter = Exporter::new(setting.gpu.clone());
    let memory = setting.gpu.device(1).unwrap().allocate(8192).unwrap();
    let found = exporter.allocation(memory.address() + 100).unwrap();
    assert_eq!(
        (found.base, found.bytes, found.device),
        (memory.address(), 8192, 1)
    );
    assert_eq!(exporter.allocation((&raw const exporter) as usize), None);
    let (descriptor, offset) = exporter.dma_buf(found.base, found.bytes).unwrap();
    assert_eq!(offset, 0);
    drop(descriptor);
    assert!(exporter.dma_buf((&raw const exporter) as usize, 4096).is_err());
    assert_eq!(exporter.pci_address(1).unwrap(), "0000:c1:00.0");
    drop(memory);
    assert_eq!(exporter.allocation(found.base), None, "it was freed");
    let later = setting.gpu.device(1).unwrap().allocate(8192).unwrap();
    assert_ne!(exporter.allocation(later.address()).unwrap().number, found.number);
    if !setting.rocm {
        setting.standin.set("standin_context", 0);
        let error = exporter.dma_buf(later.address(), 8192).unwrap_err();
        assert!(matches!(error, GpuError::NoContext { device: 1, .. }), "{error}");
        assert_eq!(exporter.allocation(later.address()), None);
        setting.standin.set("standin_context", 1);
        assert_eq!(
            setting.standin.get("standin_retained"),
            0,
            "every context was let go of"
        );
    }
}

fn modules(setting: &Setting) {
    let device = setting.gpu.device(0).unwrap();
    let stream = device.stream().unwrap();
    // SAFETY: the stand-in looks at the first bytes and at the zero at the end.
    let module = unsafe { device.load(b"code\0") }.unwrap();
    // SAFETY: as above.
    let refused = unsafe { device.load(b"rubbish\0") };
    assert_eq!(refused.unwrap_err().code(), Some(200));
    assert_eq!(module.kernel(c"subtract").unwrap_err().code(), Some(500));
    let kernel = module.kernel(c"add").unwrap();
    drop(module);
    let usage = kernel.usage(256).unwrap();
    assert_eq!(
        (
            usage.registers,
            usage.shared_bytes,
            usage.spilled_bytes,
            usage.blocks_per_multiprocessor
        ),
        (4, 1, 3, 8)
    );
    let numbers = device.allocate(4 * 6).unwrap();
    numbers.fill(0, &stream).unwrap().wait().unwrap();
    let (mut address, mut more) = (numbers.address(), 3_u32);
    let arguments = &mut [(&raw mut address).cast(), (&raw mut more).cast()];
    // SAFETY: the stand-in's kernel takes an address of as many numbers as there are threads, and one number.
    unsafe { kernel.start(2, 3, &stream, arguments, vec![numbers.clone()]) }
        .unwrap()
        .wait()
        .unwrap();
    let mut back = [0; 24];
    numbers.read(&mut back).unwrap();
    assert_eq!(back, [3, 0, 0, 0].repeat(6)[..]);

    // The embedded kernels are those for the device's architecture, or it is said why there are none.
    let architecture = device.architecture().unwrap();
    match device.kernels() {
        Ok(kernels) => {
            assert!(objects().iter().any(|object| object.architecture == architecture));
            kernels.kernel(c"roost_checksum").unwrap();
        }
        Err(GpuError::Unavailable { tried, .. }) => {
            assert!(
                objects().iter().all(|object| object.architecture != architecture),
                "{tried:?}"
            );
        }
        Err(error) => panic!("{error}"),
    }
}

fn without_a_device(setting: &Setting) {
    setting.standin.set("standin_devices", 0);
    let platform = setting.gpu.platform();
    let error = Gpu::open(Choice::Only(platform), &setting.search).unwrap_err();
    let GpuError::Unavailable { tried, .. } = &error else {
        panic!("{error}")
    };
    assert!(
        tried.len() == 1 && tried[0].starts_with(&format!("{platform}: ")) && tried[0].contains("100"),
        "{error}"
    );
    setting.standin.set("standin_devices", 2);
}

#[test]
fn a_library_that_is_not_there_is_named_with_all_that_was_tried() {
    let search = Search {
        folders: vec![PathBuf::from("/nowhere")],
    };
    let error = Gpu::open(Choice::None, &search).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a GPU is not available: ROOST_GPU_PLATFORM is none"
    );
    assert!(Choice::parse("vulkan").is_err());
    assert_eq!(Choice::parse(" ROCm ").unwrap(), Choice::Only(Platform::Rocm));
    assert_eq!(Choice::parse("").unwrap(), Choice::Detect);
}
