//! Shared libraries, opened at run time: a copy that the process has already, else by name.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::Copies;

/// A library of the process. It is never closed: the vendors' runtimes have threads that outlive a `dlclose`.
#[derive(Debug, Clone)]
pub struct Library {
    handle: usize,
    path: PathBuf,
    others: Vec<PathBuf>,
}

/// Where libraries are looked for.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Folders that are tried before the loader's own.
    pub folders: Vec<PathBuf>,
}

impl Library {
    /// Opens a library: the copy whose file's name begins with `stem` if the process has one, else the first of `names`
    /// in the folders of the search, else by the loader's own rules.
    ///
    /// # Errors
    ///
    /// What was tried and how each ended.
    pub fn open(stem: &str, names: &[&str], search: &Search) -> Result<Self, Vec<String>> {
        let mut tried = Vec::new();
        let loaded = loaded_copies(stem);
        if let Some((used, others)) = loaded.split_first() {
            match open_path(used.as_os_str(), libc::RTLD_NOLOAD) {
                Ok(handle) => {
                    return Ok(Self {
                        handle,
                        path: used.clone(),
                        others: others.to_vec(),
                    });
                }
                Err(why) => tried.push(why),
            }
        }
        let in_folders = search
            .folders
            .iter()
            .flat_map(|folder| names.iter().map(|name| folder.join(name)));
        for candidate in in_folders
            .filter(|path| path.exists())
            .chain(names.iter().map(PathBuf::from))
        {
            match open_path(candidate.as_os_str(), 0) {
                Ok(handle) => {
                    // The name that was asked for may be a link, and the loader may have found it anywhere.
                    let path = loaded_copies(stem).into_iter().next_back().unwrap_or(candidate);
                    return Ok(Self {
                        handle,
                        path,
                        others: Vec::new(),
                    });
                }
                Err(why) => tried.push(why),
            }
        }
        Err(tried)
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says so when the process has several copies of it, as of when it was opened.
    pub fn copies(&self) -> Option<Copies> {
        (!self.others.is_empty()).then(|| Copies {
            used: self.path.clone(),
            others: self.others.clone(),
        })
    }

    /// Where a symbol lies; null where there is none of that name.
    pub fn symbol(&self, name: &str) -> *mut c_void {
        let Ok(name) = CString::new(name) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the handle came from dlopen and is never closed; the name ends in a zero byte.
        unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) }
    }
}

/// The files of the process's libraries whose name begins with `stem` and goes on with a dot or a dash.
///
/// Wheels rename what they bring along (`libcudart-9c2f.so.13`), so a library that is loaded is not found by its name.
pub fn loaded_copies(stem: &str) -> Vec<PathBuf> {
    let mut wanted = Wanted {
        stem: stem.as_bytes(),
        found: Vec::new(),
    };
    // SAFETY: the callback gets this very pointer, uses it as what it is, and is done when the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut wanted).cast()) };
    wanted.found
}

/// How many libraries this process has loaded so far: while that stays, none has come.
pub fn loads() -> u64 {
    let mut count = 0_u64;
    // SAFETY: the callback gets this very pointer, uses it as what it is, and is done when the call returns.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

/// Ends the walk at its first entry, each of which has the count.
unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's entry is valid during the callback; `loads` handed its own number in.
    unsafe { *data.cast::<u64>() = (*info).dlpi_adds };
    1
}

struct Wanted<'a> {
    stem: &'a [u8],
    found: Vec<PathBuf>,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `loaded_copies` handed its own `Wanted` in, and nothing else holds it during the walk.
    let wanted = unsafe { &mut *data.cast::<Wanted<'_>>() };
    // SAFETY: the loader's entry is valid during the callback.
    let name = unsafe { (*info).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: the loader's names end in a zero byte and live during the callback.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let rest = file.strip_prefix(wanted.stem);
    if rest.is_some_and(|rest| matches!(rest.first(), Some(b'.' | b'-'))) {
        wanted
            .found
            .push(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())));
    }
    0
}

fn open_path(path: &OsStr, more: c_int) -> Result<usize, String> {
    let said = path.to_string_lossy().into_owned();
    let path = CString::new(path.as_bytes()).map_err(|_| format!("{said:?} has a zero byte in it"))?;
    // SAFETY: a name that ends in a zero byte. The vendors' libraries are made to be opened so; what their constructors
    // do is the same as if the program were linked against them. RTLD_LOCAL keeps their names out of each other's way.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | more) };
    if handle.is_null() {
        Err(loader_error().unwrap_or_else(|| format!("{said}: not loaded")))
    } else {
        Ok(handle as usize)
    }
}

fn loader_error() -> Option<String> {
    // SAFETY: no argument; the text belongs to this thread until its next call of the loader.
    let text: *const c_char = unsafe { libc::dlerror() };
    // SAFETY: when there is a text, it ends in a zero byte.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
