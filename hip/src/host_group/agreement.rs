//! What all ranks have to say alike of an operation, as two words in memory that they share: its bytes, and what it is.

use super::{Purpose, Reduction, Verb};
use crate::rccl::{DataType, ReduceOp};

const VERBS: [Verb; 4] = [Verb::AllReduce, Verb::Reduce, Verb::ReduceScatter, Verb::Barrier];
const TYPES: [DataType; 11] = [
    DataType::I8,
    DataType::U8,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
    DataType::F16,
    DataType::F32,
    DataType::F64,
    DataType::Bf16,
    DataType::Fp8,
];
const OPS: [ReduceOp; 5] = [
    ReduceOp::Sum,
    ReduceOp::Product,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Average,
];

/// What a rank says of its operation.
pub(super) fn words(reduction: &Reduction) -> (u64, u64) {
    let Purpose { verb, root, number } = reduction.purpose;
    let [high, middle, low, lowest] = number.to_be_bytes();
    let kind = [
        high,
        middle,
        low,
        lowest,
        root,
        place(&VERBS, &verb),
        place(&TYPES, &reduction.data_type),
        place(&OPS, &reduction.op),
    ];
    (reduction.bytes() as u64, u64::from_be_bytes(kind))
}

/// The same for people.
pub(super) fn told((bytes, kind): (u64, u64)) -> String {
    let [high, middle, low, lowest, root, verb, data_type, op] = kind.to_be_bytes();
    let number = match u32::from_be_bytes([high, middle, low, lowest]) {
        0 => String::new(),
        number => format!(", operation {number}"),
    };
    let name = match VERBS.get(usize::from(verb)) {
        Some(Verb::AllReduce) => "all_reduce",
        Some(Verb::Reduce) => "reduce",
        Some(Verb::ReduceScatter) => "reduce_scatter",
        Some(Verb::Barrier) => return format!("barrier{number}"),
        None => "something unknown",
    };
    let (data_type, op) = (TYPES.get(usize::from(data_type)), OPS.get(usize::from(op)));
    let elements = match (data_type, op) {
        (Some(data_type), Some(op)) => format!(" of {data_type:?} ({op:?})").to_lowercase(),
        _ => String::new(),
    };
    let to = if verb == place(&VERBS, &Verb::Reduce) {
        format!(" to rank {root}")
    } else {
        String::new()
    };
    format!("{name} of {bytes} bytes{elements}{to}{number}")
}

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let at = all.iter().position(|known| known == one);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Reduction = Reduction {
        address: 0,
        count: 10,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        purpose: Purpose {
            verb: Verb::Reduce,
            root: 3,
            number: 70_000,
        },
    };

    fn with(purpose: Purpose) -> Reduction {
        Reduction { purpose, ..ONE }
    }

    #[test]
    fn all_that_ranks_may_differ_in_is_said() {
        let others = [
            Reduction { count: 11, ..ONE },
            Reduction {
                data_type: DataType::I32,
                ..ONE
            },
            Reduction {
                op: ReduceOp::Max,
                ..ONE
            },
            with(Purpose {
                verb: Verb::AllReduce,
                ..ONE.purpose
            }),
            with(Purpose {
                root: 4,
                ..ONE.purpose
            }),
            with(Purpose {
                number: 4464,
                ..ONE.purpose
            }),
        ];
        let mut all: Vec<_> = others.iter().map(words).chain([words(&ONE)]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 7);
    }

    #[test]
    fn all_of_it_is_told_whatever_lies_there() {
        let numbered = "reduce of 40 bytes of f32 (sum) to rank 3, operation 70000";
        assert_eq!(told(words(&ONE)), numbered);
        let uncounted = with(Purpose {
            number: 0,
            ..ONE.purpose
        });
        assert_eq!(
            told(words(&uncounted)),
            "reduce of 40 bytes of f32 (sum) to rank 3"
        );
        let barrier = with(Purpose {
            verb: Verb::Barrier,
            root: 0,
            number: 2,
        });
        assert_eq!(told(words(&barrier)), "barrier, operation 2");
        assert_eq!(
            told((8, u64::MAX)),
            "something unknown of 8 bytes, operation 4294967295"
        );
    }
}
