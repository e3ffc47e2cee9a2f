//! Attributes of a device: the same things under other numbers.

use std::ffi::c_int;

macro_rules! attributes {
    ($($(#[$about:meta])* $name:ident = $hip:literal $hip_number:literal, $cuda:literal $cuda_number:literal;)*) => {
        /// What can be asked of a device.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Attribute { $($(#[$about])* $name),* }

        impl Attribute {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its number and its name in HIP.
            pub const fn hip(self) -> (c_int, &'static str) {
                match self { $(Self::$name => ($hip_number, $hip)),* }
            }

            /// Its number and its name in CUDA.
            pub const fn cuda(self) -> (c_int, &'static str) {
                match self { $(Self::$name => ($cuda_number, $cuda)),* }
            }
        }
    };
}

attributes! {
    /// The first number of the compute capability.
    ComputeCapabilityMajor = "hipDeviceAttributeComputeCapabilityMajor" 23, "cudaDevAttrComputeCapabilityMajor" 75;
    /// The second number of the compute capability.
    ComputeCapabilityMinor = "hipDeviceAttributeComputeCapabilityMinor" 61, "cudaDevAttrComputeCapabilityMinor" 76;
    /// One where managed memory is to be had.
    ManagedMemory = "hipDeviceAttributeManagedMemory" 24, "cudaDevAttrManagedMemory" 83;
    /// Most threads of a block.
    MaxThreadsPerBlock = "hipDeviceAttributeMaxThreadsPerBlock" 56, "cudaDevAttrMaxThreadsPerBlock" 1;
    /// Compute units, or streaming multiprocessors.
    MultiprocessorCount = "hipDeviceAttributeMultiprocessorCount" 63, "cudaDevAttrMultiProcessorCount" 16;
    /// The bus of the PCI address.
    PciBusId = "hipDeviceAttributePciBusId" 67, "cudaDevAttrPciBusId" 33;
    /// One where physical memory can be mapped at chosen addresses.
    VirtualMemoryManagement = "hipDeviceAttributeVirtualMemoryManagementSupported" 89, "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED" 102;
    /// Threads that run in step: 64 on CDNA, 32 elsewhere.
    WarpSize = "hipDeviceAttributeWarpSize" 87, "cudaDevAttrWarpSize" 10;
}
