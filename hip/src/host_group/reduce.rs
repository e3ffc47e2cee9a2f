//! Many ranks' elements as one, in rank order, so that the result has the same bits at all ranks.
//!
//! Numbers of 16 bits are added up in 32 and rounded once.

use crate::rccl::{DataType, ReduceOp};

/// So many elements at a time are in work, in the nearest cache.
const BLOCK: usize = 512;

/// Reduces `bytes` of each source into both targets, which may be the same, or sources.
///
/// # Safety
///
/// All are readable, the targets writable, and nobody else writes there.
pub(super) unsafe fn reduce(
    data_type: DataType,
    op: ReduceOp,
    sources: &[*const u8],
    to: [*mut u8; 2],
    bytes: usize,
) {
    macro_rules! of {
        ($kind:ty) => {
            // SAFETY: the caller's.
            unsafe { reduce_as::<$kind>(op, sources, to, bytes / size_of::<$kind>()) }
        };
    }
    match data_type {
        DataType::I8 => of!(i8),
        DataType::U8 | DataType::Fp8 => of!(u8),
        DataType::I32 => of!(i32),
        DataType::U32 => of!(u32),
        DataType::I64 => of!(i64),
        DataType::U64 => of!(u64),
        DataType::F32 => of!(f32),
        DataType::F64 => of!(f64),
        DataType::F16 => of!(Half),
        DataType::Bf16 => of!(Brain),
    }
}

unsafe fn reduce_as<E: Element>(op: ReduceOp, sources: &[*const u8], to: [*mut u8; 2], count: usize) {
    let mut sum = [E::Wide::default(); BLOCK];
    for first in (0..count).step_by(BLOCK) {
        let length = BLOCK.min(count - first);
        let sum = &mut sum[..length];
        let element = |source: *const u8, at: usize| {
            // SAFETY: the caller's: `count` elements each. An unaligned one is read and written as such.
            unsafe { source.cast::<E>().add(first + at).read_unaligned() }
        };
        for (at, one) in sum.iter_mut().enumerate() {
            *one = element(sources[0], at).widen();
        }
        for source in &sources[1..] {
            let all = sum
                .iter_mut()
                .enumerate()
                .map(|(at, one)| (element(*source, at).widen(), one));
            match op {
                ReduceOp::Sum | ReduceOp::Average => all.for_each(|(other, one)| *one = one.plus(other)),
                ReduceOp::Product => all.for_each(|(other, one)| *one = one.times(other)),
                ReduceOp::Max => all.for_each(|(other, one)| *one = one.larger(other)),
                ReduceOp::Min => all.for_each(|(other, one)| *one = one.smaller(other)),
            }
        }
        if matches!(op, ReduceOp::Average) {
            for one in &mut *sum {
                *one = one.over(sources.len());
            }
        }
        for target in to {
            let target = target.cast::<E>();
            for (at, one) in sum.iter().enumerate() {
                // SAFETY: as above.
                unsafe { target.add(first + at).write_unaligned(E::narrow(*one)) };
            }
        }
    }
}

/// What it is in memory, and what it is reckoned in.
trait Element: Copy {
    type Wide: Number;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

trait Number: Copy + Default {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn over(self, ranks: usize) -> Self;
}

macro_rules! itself {
    ($($kind:ty)*) => { $(
        impl Element for $kind {
            type Wide = Self;
            fn widen(self) -> Self { self }
            fn narrow(wide: Self) -> Self { wide }
        }
    )* };
}
itself!(i8 u8 i32 u32 i64 u64 f32 f64);

macro_rules! whole {
    ($($kind:ty)*) => { $(
        impl Number for $kind {
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn larger(self, other: Self) -> Self { self.max(other) }
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn over(self, ranks: usize) -> Self { Self::try_from(ranks).map_or(0, |ranks| self / ranks) }
        }
    )* };
}
whole!(i8 u8 i32 u32 i64 u64);

// What is no number stays none, whichever of the two it is.
macro_rules! real {
    ($($kind:ty)*) => { $(
        impl Number for $kind {
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
            fn larger(self, other: Self) -> Self { if self > other || self.is_nan() { self } else { other } }
            fn smaller(self, other: Self) -> Self { if self < other || self.is_nan() { self } else { other } }
            #[expect(clippy::cast_precision_loss, reason = "at most 64 ranks")]
            fn over(self, ranks: usize) -> Self { self / ranks as Self }
        }
    )* };
}
real!(f32 f64);

/// The upper half of an IEEE number of 32 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Brain(u16);

impl Element for Brain {
    type Wide = f32;

    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let upper = if wide.is_nan() {
            // Rounding would make an infinity of some.
            bits >> 16 | 0x40
        } else {
            (bits + 0x7fff + (bits >> 16 & 1)) >> 16
        };
        Self(low(upper))
    }
}

/// IEEE, 16 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Half(u16);

impl Element for Half {
    type Wide = f32;

    fn widen(self) -> f32 {
        // 2^112 is between what the two kinds of exponents count from; it makes numbers of denormals, too.
        let scale = f32::from_bits(0x7780_0000);
        let (sign, rest) = (u32::from(self.0 & 0x8000) << 16, u32::from(self.0 & 0x7fff));
        let size = if rest >= 0x7c00 {
            0x7f80_0000 | (rest & 0x3ff) << 13
        } else {
            (f32::from_bits(rest << 13) * scale).to_bits()
        };
        f32::from_bits(sign | size)
    }

    fn narrow(wide: f32) -> Self {
        let (sign, size) = (wide.to_bits() >> 16 & 0x8000, wide.to_bits() & 0x7fff_ffff);
        let rest = if wide.is_nan() {
            0x7e00
        } else if size >= 0x477f_f000 {
            // From here on the nearest is infinite.
            0x7c00
        } else if size < 0x3880_0000 {
            // A sum with 1/2 is rounded to multiples of 2^-24, which denormals are counts of.
            (f32::from_bits(size) + 0.5).to_bits() - 0x3f00_0000
        } else {
            (size - 0x3800_0000 + 0xfff + (size >> 13 & 1)) >> 13
        };
        Self(low(sign | rest))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
const fn low(bits: u32) -> u16 {
    bits as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_16_bits_comes_back() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (Half(bits).widen(), Brain(bits).widen());
            if half.is_nan() {
                assert!(Half::narrow(half).widen().is_nan(), "{bits:#x}");
            } else {
                assert_eq!(Half::narrow(half).0, bits);
            }
            if brain.is_nan() {
                assert!(Brain::narrow(brain).widen().is_nan(), "{bits:#x}");
            } else {
                assert_eq!(Brain::narrow(brain).0, bits);
            }
        }
    }

    #[test]
    fn what_lies_between_goes_to_the_nearest_and_of_two_to_the_even_one() {
        // All pairs of neighbours, and what lies in the middle, below and above: the middle is exact in 32 bits.
        for bits in 0..0x7bff_u16 {
            let (low, high) = (Half(bits).widen(), Half(bits + 1).widen());
            let middle = f32::midpoint(low, high);
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(Half::narrow(middle).0, even, "{bits:#x}");
            assert_eq!(Half::narrow(middle.next_down()).0, bits);
            assert_eq!(Half::narrow(middle.next_up()).0, bits + 1);
            assert_eq!(Half::narrow(-middle).0, even | 0x8000);
        }
        assert_eq!(Half::narrow(65519.0).0, 0x7bff);
        assert_eq!(Half::narrow(65520.0).0, 0x7c00);
        for bits in 0..0x7f7f_u16 {
            let middle = f32::from_bits(u32::from(bits) << 16 | 0x8000);
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(Brain::narrow(middle).0, even, "{bits:#x}");
            assert_eq!(Brain::narrow(middle.next_down()).0, bits);
            assert_eq!(Brain::narrow(middle.next_up()).0, bits + 1);
        }
    }

    #[test]
    fn each_operation_of_more_elements_than_a_block_has() {
        let ranks: Vec<Vec<i32>> = (0..3)
            .map(|rank| (0..1301).map(|at| (at * 7 + rank * 5) % 11 - 5).collect())
            .collect();
        let sources: Vec<*const u8> = ranks.iter().map(|one| one.as_ptr().cast()).collect();
        for op in [
            ReduceOp::Sum,
            ReduceOp::Product,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::Average,
        ] {
            let (mut one, mut other) = (vec![0_i32; 1301], vec![0_i32; 1301]);
            let to = [one.as_mut_ptr().cast(), other.as_mut_ptr().cast()];
            // SAFETY: vectors of that length.
            unsafe { reduce(DataType::I32, op, &sources, to, 4 * 1301) };
            for at in 0..1301 {
                let all = ranks.iter().map(|one| one[at]);
                let wanted = match op {
                    ReduceOp::Sum => all.sum(),
                    ReduceOp::Product => all.product(),
                    ReduceOp::Max => all.max().unwrap(),
                    ReduceOp::Min => all.min().unwrap(),
                    ReduceOp::Average => all.sum::<i32>() / 3,
                };
                assert_eq!((one[at], other[at]), (wanted, wanted), "{op:?} at {at}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let (none, one) = ([f32::NAN, 1.0], [1.0, f32::NAN]);
        let sources = [none.as_ptr().cast(), one.as_ptr().cast()];
        for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum] {
            let mut made = [0.0_f32; 2];
            let to = [made.as_mut_ptr().cast(); 2];
            // SAFETY: arrays of two.
            unsafe { reduce(DataType::F32, op, &sources, to, 8) };
            assert!(made[0].is_nan() && made[1].is_nan(), "{op:?}: {made:?}");
        }
    }
}
