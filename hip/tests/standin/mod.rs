//! Builds the stand-ins for the vendors' libraries, and speaks with them behind the crate's back.

#![allow(dead_code, reason = "each test uses some of it")]

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;

use roost_hip::library::{Library, Search};

/// Compiles a C source beside this file into a library of the given name, in a folder of the test's own.
pub(crate) fn build(source: &str, folder: &str, file: &str, flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{folder}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join(file);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/standin")
        .join(source);
    let mut compiler = Command::new("cc");
    compiler
        .args([
            "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
        ])
        .args(flags);
    let made = compiler
        .arg(source)
        .arg("-o")
        .arg(&library)
        .output()
        .expect("a C compiler");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder
}

/// The stand-in itself.
pub(crate) struct StandIn(Library);

impl StandIn {
    pub(crate) fn of(stem: &str, file: &str, folder: &Path) -> Self {
        let search = Search {
            folders: vec![folder.to_path_buf()],
        };
        Self(Library::open(stem, &[file], &search).unwrap())
    }

    fn variable(&self, name: &str) -> *mut c_int {
        let address = self.0.symbol(name).cast::<c_int>();
        assert!(!address.is_null(), "{name}");
        address
    }

    pub(crate) fn get(&self, name: &str) -> c_int {
        // SAFETY: the stand-in has an integer of this name, which no other test uses.
        unsafe { self.variable(name).read_volatile() }
    }

    pub(crate) fn set(&self, name: &str, value: c_int) {
        // SAFETY: as above.
        unsafe { self.variable(name).write_volatile(value) };
    }

    /// From now on, the vendor's function of this name fails so. An empty name ends it.
    pub(crate) fn fail(&self, name: &str, code: c_int) {
        let address = self.0.symbol("standin_fail");
        assert!(!address.is_null());
        // SAFETY: the stand-in has a function of this name and signature.
        let set: unsafe extern "C" fn(*const c_char, c_int) = unsafe { std::mem::transmute(address) };
        let name = CString::new(name).unwrap();
        // SAFETY: a text that ends in a zero byte, which is copied.
        unsafe { set(name.as_ptr(), code) };
    }

    /// Calls a function of the stand-in's that takes nothing.
    pub(crate) fn call(&self, name: &str) -> c_int {
        let address = self.0.symbol(name);
        assert!(!address.is_null());
        // SAFETY: the stand-in has a function of this name and signature.
        let function: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(address) };
        // SAFETY: no argument.
        unsafe { function() }
    }
}
