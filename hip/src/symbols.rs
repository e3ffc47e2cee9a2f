//! How tables of a library's symbols are written, filled, and described to the test that reads the vendors' headers.

use std::ffi::{c_char, c_void};

/// A symbol of a table: its names and its signature.
#[derive(Debug, Clone)]
pub struct Symbol {
    /// Its name here: CUDA's or NCCL's.
    pub name: &'static str,
    /// What it is called in the library for ROCm; none where ROCm has no such function.
    pub rocm: Option<&'static str>,
    /// What it is called in the library for CUDA; none where CUDA has no such function.
    pub cuda: Option<&'static str>,
    /// The library it is in.
    pub library: Home,
    /// Its signature in the words of [`Shape`].
    pub shape: String,
}

/// Which of a platform's libraries has a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Home {
    /// libamdhip64, or libcudart.
    Runtime,
    /// libamdhip64, or libcuda.
    Driver,
    /// libhsa-runtime64; CUDA has no twin of it.
    Hsa,
    /// librccl, or libnccl.
    Collectives,
}

/// How a type is handed over, as far as a caller must know: `w32` an integer or enum of 32 bits, `f32` a float, `s64` a
/// structure of 64 bytes, `p(…)` a pointer, `v` what nobody looks into, `p(f)` a function.
pub trait Shape {
    /// The description.
    fn shape() -> String;
}

macro_rules! shapes {
    ($($kind:ty = $text:literal),* $(,)?) => { $(impl Shape for $kind { fn shape() -> String { $text.to_owned() } })* };
}
shapes!(
    i32 = "w32",
    u32 = "w32",
    i64 = "w64",
    u64 = "w64",
    usize = "w64",
    u16 = "w16",
    c_char = "w8",
    u8 = "w8",
    f32 = "f32",
    () = "v",
    c_void = "v",
    crate::sys::Opaque = "v"
);

/// A structure that is described by its size alone; its members are compared one by one elsewhere.
macro_rules! structures {
    ($($kind:ty),* $(,)?) => {
        $(impl $crate::symbols::Shape for $kind { fn shape() -> String { format!("s{}", size_of::<$kind>()) } })*
    };
}
pub(crate) use structures;

impl<T: Shape> Shape for *mut T {
    fn shape() -> String {
        format!("p({})", T::shape())
    }
}

impl<T: Shape> Shape for *const T {
    fn shape() -> String {
        format!("p({})", T::shape())
    }
}

impl<T> Shape for Option<unsafe extern "C" fn(*mut T)> {
    fn shape() -> String {
        "p(f)".to_owned()
    }
}

/// Makes a table: a struct with one optional function a symbol, `fill` to look them all up, and `symbols` to list them.
///
/// A row reads `name: rocm "name there" | none, LIBRARY "name there" | none, (arguments) -> result;`
macro_rules! table {
    ($(#[$about:meta])* pub struct $table:ident;
     $($name:ident: rocm $rocm:tt, $library:ident $cuda:tt, ($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $table {
            $(pub(crate) $name: Option<unsafe extern "C" fn($($argument),*) -> $result>,)*
        }

        impl $table {
            /// Looks every symbol up. `find` gets the symbol's name on the platform and the library it should be in.
            ///
            /// # Safety
            ///
            /// What `find` returns is null or a function of the declared signature that stays where it is while the
            /// process lives.
            pub(crate) unsafe fn fill(
                rocm: bool, find: &mut dyn FnMut(&'static str, $crate::symbols::Home) -> *mut std::ffi::c_void,
            ) -> Self {
                Self { $($name: {
                    let named = if rocm { $crate::symbols::name!($rocm) } else { $crate::symbols::name!($cuda) };
                    let found = named.map_or(std::ptr::null_mut(), |name| find(name, $crate::symbols::Home::$library));
                    // SAFETY: null becomes `None`; for the rest the caller of `fill` answers. Pointers to functions
                    // and to data are of one size on every platform that has these libraries.
                    unsafe {
                        std::mem::transmute::<*mut std::ffi::c_void,
                            Option<unsafe extern "C" fn($($argument),*) -> $result>>(found)
                    }
                },)* }
            }

            /// Every symbol of the table.
            pub fn symbols() -> Vec<$crate::symbols::Symbol> {
                use $crate::symbols::Shape;
                vec![$($crate::symbols::Symbol {
                    name: stringify!($name),
                    rocm: $crate::symbols::name!($rocm),
                    cuda: $crate::symbols::name!($cuda),
                    library: $crate::symbols::Home::$library,
                    shape: {
                        let arguments: Vec<String> = vec![$(<$argument>::shape()),*];
                        format!("{}({})", <$result>::shape(), arguments.join(","))
                    },
                },)*]
            }

            /// The names of the symbols that the library does not have.
            pub fn missing(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if self.$name.is_none() { names.push(stringify!($name)); })*
                names
            }
        }
    };
}
pub(crate) use table;

macro_rules! name {
    (none) => {
        None::<&'static str>
    };
    ($name:literal) => {
        Some($name)
    };
}
pub(crate) use name;
