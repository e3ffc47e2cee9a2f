//! The program that is compiled against the vendors' headers, and where these are found.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A set of headers.
pub(crate) struct Headers {
    /// What it is called in the report.
    pub(crate) name: String,
    /// The first number of its version.
    pub(crate) major: u32,
    folders: Vec<PathBuf>,
    prelude: &'static str,
    /// CUDA's driver has integers where HIP has addresses, which are handed over alike.
    integer_addresses: bool,
}

/// Something that the headers have otherwise.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) name: String,
    pub(crate) declared: String,
    pub(crate) found: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} is declared {}, the headers have {}",
            self.name, self.declared, self.found
        )
    }
}

struct Question {
    name: String,
    code: String,
    declared: String,
    room: bool,
}

/// What is asked of a set of headers.
#[derive(Default)]
pub(crate) struct Probe(Vec<Question>);

impl Probe {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A function's signature, in the words of `Shape`.
    pub(crate) fn function(&mut self, name: &str, in_headers: &str, shape: &str) {
        // C++ has others of this name, so this one is named by what it takes.
        let address = match in_headers {
            "hipMallocAsync" => {
                "static_cast<hipError_t (*)(void **, size_t, hipStream_t)>(&hipMallocAsync)".to_owned()
            }
            _ => format!("&{in_headers}"),
        };
        let code = format!("std::puts(Shape<decltype({address})>::text().c_str());");
        self.ask(name, code, shape.to_owned(), false);
    }

    pub(crate) fn constant(&mut self, name: &str, value: i64) {
        self.ask(
            name,
            format!("std::printf(\"%lld\\n\", (long long)({name}));"),
            value.to_string(),
            false,
        );
    }

    /// A size or an offset; with `room`, the headers' may be smaller.
    pub(crate) fn place(&mut self, expression: &str, bytes: usize, room: bool) {
        self.ask(
            expression,
            format!("std::printf(\"%zu\\n\", (size_t)({expression}));"),
            bytes.to_string(),
            room,
        );
    }

    fn ask(&mut self, name: &str, code: String, declared: String, room: bool) {
        self.0.push(Question {
            name: name.to_owned(),
            code,
            declared,
            room,
        });
    }

    /// Compiles and runs it; what does not compile is a failure that shows the compiler's words.
    pub(crate) fn run(&self, headers: &Headers) -> Vec<Difference> {
        let mut source = format!(
            "{}\n#include <cstddef>\n#include <cstdio>\n{SHAPES}\nint main() {{\n",
            headers.prelude
        );
        for question in &self.0 {
            writeln!(source, "{}", question.code).unwrap();
        }
        source.push_str("}\n");
        let lines = compile_and_run(&source, &headers.folders, &headers.name);
        assert_eq!(
            lines.len(),
            self.0.len(),
            "{}: an answer for each question",
            headers.name
        );
        let answers = self.0.iter().zip(lines);
        answers
            .filter(|(question, found)| !question.agrees(found, headers))
            .map(|(question, found)| question.difference(found))
            .collect()
    }
}

impl Question {
    fn agrees(&self, found: &str, headers: &Headers) -> bool {
        let smaller = || {
            found
                .parse::<usize>()
                .ok()
                .zip(self.declared.parse().ok())
                .is_some_and(|(a, b): (_, usize)| a <= b)
        };
        let integers = |shape: &str| shape.replace("p(v)", "w64");
        self.declared == found
            || (self.room && smaller())
            || (headers.integer_addresses && integers(&self.declared) == integers(found))
    }

    fn difference(&self, found: String) -> Difference {
        Difference {
            name: self.name.clone(),
            declared: self.declared.clone(),
            found,
        }
    }
}

fn compile_and_run(source: &str, folders: &[PathBuf], name: &str) -> Vec<String> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, program) = (folder.join("probe.cpp"), folder.join("probe"));
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("c++");
    compiler
        .args(["-std=c++17", "-w"])
        .args(folders.iter().flat_map(|folder| [Path::new("-I"), folder]));
    let made = compiler
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C++ compiler");
    assert!(
        made.status.success(),
        "{name}: the probe does not compile:\n{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success());
    std::fs::remove_dir_all(&folder).unwrap();
    String::from_utf8(ran.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// `Shape` of the crate, in C++: how a type is handed over.
const SHAPES: &str = r#"
#include <string>
#include <type_traits>
template <class T, class = void> struct Whole : std::false_type {};
template <class T> struct Whole<T, std::void_t<decltype(sizeof(T))>> : std::true_type {};
template <class T, class = void> struct Shape {
    static std::string text() {
        if constexpr (!Whole<T>::value || std::is_void_v<T>) return "v";
        else if constexpr (std::is_floating_point_v<T>) return "f" + std::to_string(8 * sizeof(T));
        else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) return "w" + std::to_string(8 * sizeof(T));
        else return "s" + std::to_string(sizeof(T));
    }
};
template <class T> struct Shape<T *> {
    static std::string text() {
        if constexpr (std::is_function_v<T>) return "p(f)";
        else return "p(" + Shape<std::remove_cv_t<T>>::text() + ")";
    }
};
template <class R, class... A> struct Shape<R (*)(A...)> {
    static std::string text() {
        std::string arguments;
        ((arguments += (arguments.empty() ? "" : ",") + One<std::remove_cv_t<A>>::text()), ...);
        return Shape<R>::text() + "(" + arguments + ")";
    }
    template <class T, class = void> struct One { static std::string text() { return Shape<T>::text(); } };
    template <class T> struct One<T *, std::enable_if_t<std::is_function_v<T>>> { static std::string text() { return "p(f)"; } };
};
template <class R, class... A> struct Shape<R (*)(A...) noexcept> : Shape<R (*)(A...)> {};
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// The folders of Python packages that are here: of the project's environment, and of what the scripts fetched.
fn site_packages() -> Vec<PathBuf> {
    let versions = std::fs::read_dir(root().join(".venv/lib"))
        .into_iter()
        .flatten()
        .flatten();
    let venv = versions.map(|version| version.path().join("site-packages"));
    venv.chain([root().join("target/cuda")])
        .filter(|folder| folder.exists())
        .collect()
}

fn define(folder: &Path, file: &str, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(folder.join(file)).ok()?;
    text.lines().find_map(|line| {
        line.trim()
            .strip_prefix("#define")?
            .trim()
            .strip_prefix(name)?
            .trim()
            .parse()
            .ok()
    })
}

fn hip_folders() -> Vec<PathBuf> {
    let triton = site_packages()
        .into_iter()
        .map(|site| site.join("triton/backends/amd/include"));
    let fetched = root().join("target/hip/root/rocm/usr/include");
    triton
        .chain([fetched, PathBuf::from("/opt/rocm/include")])
        .collect()
}

/// Every HIP whose headers are here.
pub(crate) fn hip() -> Vec<Headers> {
    let prelude = "#define __HIP_PLATFORM_AMD__ 1\n#define __HIP_DISABLE_CPP_FUNCTIONS__ 1\n#include <hip/hip_runtime_api.h>";
    let versions = hip_folders().into_iter().filter_map(|folder| {
        let major = define(&folder, "hip/hip_version.h", "HIP_VERSION_MAJOR")?;
        let minor = define(&folder, "hip/hip_version.h", "HIP_VERSION_MINOR")?;
        Some(Headers {
            name: format!("HIP {major}.{minor}"),
            major,
            folders: vec![folder],
            prelude,
            integer_addresses: false,
        })
    });
    versions.collect()
}

/// Every HSA whose headers are here.
pub(crate) fn hsa() -> Vec<Headers> {
    let prelude = "#include <hsa/hsa_ext_amd.h>";
    let there = hip_folders()
        .into_iter()
        .filter(|folder| folder.join("hsa/hsa_ext_amd.h").exists());
    there
        .map(|folder| Headers {
            name: "HSA".to_owned(),
            major: 1,
            folders: vec![folder],
            prelude,
            integer_addresses: false,
        })
        .collect()
}

fn cuda_folders() -> Vec<PathBuf> {
    let wheels = site_packages()
        .into_iter()
        .map(|site| site.join("nvidia/cu13/include"));
    // The wheel of the runtime alone lacks a header that its own include: the scripts fetch it.
    let whole =
        |folder: &PathBuf| folder.join("crt/host_defines.h").exists() && folder.join("cuda.h").exists();
    wheels
        .chain([PathBuf::from("/usr/local/cuda/include")])
        .filter(whole)
        .collect()
}

/// Every CUDA whose headers are here.
pub(crate) fn cuda() -> Vec<Headers> {
    let prelude = "#include <cuda.h>\n#include <cuda_runtime_api.h>";
    let versions = cuda_folders().into_iter().filter_map(|folder| {
        let version = define(&folder, "cuda.h", "CUDA_VERSION")?;
        let name = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
        Some(Headers {
            name,
            major: version / 1000,
            folders: vec![folder],
            prelude,
            integer_addresses: true,
        })
    });
    versions.collect()
}

/// NCCL's headers, which include CUDA's; its version counts as 229 for 2.29.
pub(crate) fn nccl() -> Vec<Headers> {
    let Some(cuda) = cuda_folders().into_iter().next() else {
        return Vec::new();
    };
    let versions = site_packages()
        .into_iter()
        .map(|site| site.join("nvidia/nccl/include"));
    let there = versions.filter_map(|folder| {
        let (major, minor) = (
            define(&folder, "nccl.h", "NCCL_MAJOR")?,
            define(&folder, "nccl.h", "NCCL_MINOR")?,
        );
        let (name, folders) = (format!("NCCL {major}.{minor}"), vec![folder, cuda.clone()]);
        let prelude = "#include <nccl.h>";
        Some(Headers {
            name,
            major: 100 * major + minor,
            folders,
            prelude,
            integer_addresses: false,
        })
    });
    // The environment's and the fetched one are of one version.
    there.take(1).collect()
}

/// RCCL's headers, which include HIP's.
pub(crate) fn rccl() -> Vec<Headers> {
    let hip = root().join("target/hip/root/rocm/usr/include");
    let folders = [
        root().join("target/hip/rccl/usr/include"),
        PathBuf::from("/opt/rocm/include"),
    ];
    let versions = folders.into_iter().filter_map(|folder| {
        let (major, minor) = (
            define(&folder, "rccl/rccl.h", "NCCL_MAJOR")?,
            define(&folder, "rccl/rccl.h", "NCCL_MINOR")?,
        );
        let (name, folders) = (format!("RCCL {major}.{minor}"), vec![folder, hip.clone()]);
        let prelude = "#define __HIP_PLATFORM_AMD__ 1\n#include <rccl/rccl.h>";
        Some(Headers {
            name,
            major: 100 * major + minor,
            folders,
            prelude,
            integer_addresses: false,
        })
    });
    versions.collect()
}

pub(crate) fn say_if_none(found: &[Headers], whose: &str) {
    if found.is_empty() {
        println!(
            "{whose} headers are not here: nothing was compared (scripts/hip-toolchain.sh and cuda-toolchain.sh fetch them)"
        );
    }
}
