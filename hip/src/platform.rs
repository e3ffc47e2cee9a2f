//! Which GPUs this process can speak with: the libraries that were found and the table of their functions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Copies, GpuError};
use crate::library::{Library, Search, loaded_copies};
use crate::result::Api;
use crate::rocm_compat::Runtime;
use crate::symbols::Home;

/// Whose GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Platform {
    /// AMD's, through HIP.
    Rocm,
    /// NVIDIA's, through CUDA.
    Cuda,
}

/// What the user chose, as `ROOST_GPU_PLATFORM` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The one whose library the process has loaded, else the one that has a device.
    #[default]
    Detect,
    /// This one, or an error.
    Only(Platform),
    /// No GPU, whatever the machine has.
    None,
}

impl Choice {
    /// Reads the variable's value; empty is detection.
    ///
    /// # Errors
    ///
    /// When it is none of `rocm`, `cuda` and `none`.
    pub fn parse(value: &str) -> Result<Self, GpuError> {
        match value.trim().to_ascii_lowercase().as_str() {
            "" => Ok(Self::Detect),
            "rocm" | "hip" => Ok(Self::Only(Platform::Rocm)),
            "cuda" => Ok(Self::Only(Platform::Cuda)),
            "none" => Ok(Self::None),
            _ => Err(GpuError::refused(format!(
                "ROOST_GPU_PLATFORM is {value:?}, which is none of rocm, cuda and none"
            ))),
        }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rocm => "rocm",
            Self::Cuda => "cuda",
        })
    }
}

/// A library's file stem, the names it is opened by in their order, and where it is when the loader does not know it.
struct Names {
    stem: &'static str,
    files: &'static [&'static str],
}

const HIP: Names = Names {
    stem: "libamdhip64",
    files: &[
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "libamdhip64.so",
    ],
};
const HSA: Names = Names {
    stem: "libhsa-runtime64",
    files: &["libhsa-runtime64.so.1", "libhsa-runtime64.so"],
};
const CUDART: Names = Names {
    stem: "libcudart",
    files: &[
        "libcudart.so.13",
        "libcudart.so.12",
        "libcudart.so.11.0",
        "libcudart.so",
    ],
};
const CUDA: Names = Names {
    stem: "libcuda",
    files: &["libcuda.so.1", "libcuda.so"],
};

impl Names {
    fn open(&self, search: &Search) -> Result<Library, Vec<String>> {
        Library::open(self.stem, self.files, search)
    }
}

impl Platform {
    fn runtime(self) -> &'static Names {
        match self {
            Self::Rocm => &HIP,
            Self::Cuda => &CUDART,
        }
    }

    /// Where its installation usually is, for loaders that were not told.
    fn usual(self) -> PathBuf {
        PathBuf::from(match self {
            Self::Rocm => "/opt/rocm/lib",
            Self::Cuda => "/usr/local/cuda/lib64",
        })
    }
}

/// The GPUs of this process. Cheap to clone; devices, streams and memory keep it alive.
#[derive(Debug, Clone)]
pub struct Gpu(Arc<Api>);

impl Gpu {
    /// Finds the libraries and asks them for devices. A device is not touched by that.
    ///
    /// # Errors
    ///
    /// [`GpuError::Unavailable`] with all that was tried, when there is no library, no driver or no device: to whom
    /// wants to use a GPU these are one and the same.
    pub fn open(choice: Choice, search: &Search) -> Result<Self, GpuError> {
        let candidates = match choice {
            Choice::None => return Err(unavailable(vec!["ROOST_GPU_PLATFORM is none".to_owned()])),
            Choice::Only(platform) => vec![platform],
            // What the process has loaded, it means to use: torch for ROCm on a machine that has CUDA as well.
            Choice::Detect if is_loaded(Platform::Cuda) && !is_loaded(Platform::Rocm) => {
                vec![Platform::Cuda, Platform::Rocm]
            }
            Choice::Detect => vec![Platform::Rocm, Platform::Cuda],
        };
        let mut tried = Vec::new();
        for platform in candidates {
            match Self::open_platform(platform, search) {
                Ok(gpu) => return Ok(gpu),
                Err(why) => tried.extend(why.into_iter().map(|why| format!("{platform}: {why}"))),
            }
        }
        Err(unavailable(tried))
    }

    fn open_platform(platform: Platform, search: &Search) -> Result<Self, Vec<String>> {
        let api = Self::load(platform, search)?;
        match api.device_count() {
            Ok(0) => Err(vec![format!("{} has no device", api.library().display())]),
            Ok(_) => Ok(Self(Arc::new(api))),
            Err(why) => Err(vec![format!("{}: {why}", api.library().display())]),
        }
    }

    /// Opens the libraries without asking for a device: what `roost doctor` looks at.
    ///
    /// # Errors
    ///
    /// What was tried and how each ended.
    pub fn load(platform: Platform, search: &Search) -> Result<Api, Vec<String>> {
        let mut search = search.clone();
        search.folders.push(platform.usual());
        let runtime = platform.runtime().open(&search)?;
        // A wheel's libraries lie side by side, where the loader would not look for them.
        search
            .folders
            .extend(runtime.path().parent().map(Path::to_path_buf));
        let other = match platform {
            Platform::Rocm => HSA.open(&search),
            Platform::Cuda => CUDA.open(&search),
        };
        let mut find = |name: &'static str, home: Home| match (platform, home, &other) {
            (Platform::Rocm, Home::Hsa, Ok(hsa)) => hsa.symbol(name),
            (Platform::Cuda, Home::Driver, Ok(driver)) => driver.symbol(name),
            (Platform::Rocm, Home::Runtime | Home::Driver, _) | (Platform::Cuda, Home::Runtime, _) => {
                runtime.symbol(name)
            }
            _ => std::ptr::null_mut(),
        };
        // SAFETY: the names are HIP's, HSA's and CUDA's, looked up in their libraries, which are never closed; the test
        // of headers holds the declared signatures against the vendors'.
        let table = unsafe { Runtime::fill(platform == Platform::Rocm, &mut find) };
        if table.cudaGetDeviceCount.is_none() {
            return Err(vec![format!(
                "{} is not a GPU's runtime: it cannot count devices",
                runtime.path().display()
            )]);
        }
        Ok(Api::new(platform, Box::new(table), runtime, other.ok()))
    }

    /// Which platform it is.
    pub fn platform(&self) -> Platform {
        self.0.platform()
    }

    /// Two copies of the runtime in this process, when it is so: memory of one is unknown to the other.
    pub fn copies(&self) -> Option<Copies> {
        self.0.copies()
    }

    pub(crate) fn api(&self) -> &Api {
        &self.0
    }

    /// How many devices this process sees.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn device_count(&self) -> Result<i32, GpuError> {
        self.0.device_count()
    }
}

fn is_loaded(platform: Platform) -> bool {
    !loaded_copies(platform.runtime().stem).is_empty()
}

fn unavailable(tried: Vec<String>) -> GpuError {
    GpuError::Unavailable {
        what: "a GPU".to_owned(),
        tried,
    }
}
