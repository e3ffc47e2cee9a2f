use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use roost_core::credit::{Amount, QueueBound, ReceiveWindow, SendWindow};

/// What may happen between a sender and one mailbox.
#[derive(Debug, Clone, Copy)]
enum Step {
    Send(u64),
    Arrive,
    Take,
    Grant,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..60_u64).prop_map(Step::Send),
        3 => Just(Step::Arrive),
        3 => Just(Step::Take),
        2 => Just(Step::Grant),
    ]
}

/// The same with nothing but lists: what is under way, what lies in the mailbox, what was granted.
struct Model {
    window: Amount,
    sender: SendWindow,
    receiver: ReceiveWindow,
    under_way: VecDeque<u64>,
    mailbox: VecDeque<u64>,
    /// Taken out since the last grant.
    ungranted: Vec<u64>,
    grants: VecDeque<(Amount, Vec<u64>)>,
    /// Sent, and not in a grant that has arrived.
    out: Vec<u64>,
}

impl Model {
    fn new(window: Amount) -> Self {
        Self {
            window,
            sender: SendWindow::default(),
            receiver: ReceiveWindow::default(),
            under_way: VecDeque::new(),
            mailbox: VecDeque::new(),
            ungranted: Vec::new(),
            grants: VecDeque::new(),
            out: Vec::new(),
        }
    }

    fn room(&self) -> bool {
        (self.out.len() as u64) < self.window.messages && self.out.iter().sum::<u64>() < self.window.bytes
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Send(bytes) => {
                let room = self.room();
                assert_eq!(self.sender.take(self.window, bytes), room);
                if room {
                    self.out.push(bytes);
                    self.under_way.push_back(bytes);
                }
            }
            Step::Arrive => {
                if let Some(bytes) = self.under_way.pop_front() {
                    self.receiver
                        .enter(self.window, bytes)
                        .expect("the sender had credit");
                    self.mailbox.push_back(bytes);
                }
            }
            Step::Take => self.take(),
            Step::Grant => {
                if let Some((total, granted)) = self.grants.pop_front() {
                    let room = self.room();
                    self.out.drain(..granted.len());
                    let opened = self.sender.grant(self.window, total).expect("a possible credit");
                    assert_eq!(opened, !room && self.room());
                }
            }
        }
        let out = Amount {
            messages: self.out.len() as u64,
            bytes: self.out.iter().sum(),
        };
        assert_eq!(
            (self.sender.out(), self.sender.has_room(self.window)),
            (out, self.room())
        );
        assert_eq!(self.receiver.waiting().messages, self.mailbox.len() as u64);
    }

    fn take(&mut self) {
        let Some(bytes) = self.mailbox.pop_front() else {
            return;
        };
        self.ungranted.push(bytes);
        let quarter = |part: u64, whole: u64| part * 4 >= whole;
        let due = quarter(self.ungranted.len() as u64, self.window.messages)
            || quarter(self.ungranted.iter().sum(), self.window.bytes);
        let grant = self.receiver.take(self.window, bytes);
        assert_eq!(grant.is_some(), due);
        if let Some(total) = grant {
            self.grants
                .push_back((total, std::mem::take(&mut self.ungranted)));
        }
    }
}

proptest! {
    #[test]
    fn credit_does_what_lists_do(steps in vec(step(), 0..200), messages in 1..20_u64, bytes in 1..200_u64) {
        let mut model = Model::new(Amount { messages, bytes });
        for step in steps {
            model.apply(step);
        }
        // However it stands: when the mailbox is emptied, the sender can go on.
        while !model.under_way.is_empty() || !model.mailbox.is_empty() || !model.grants.is_empty() {
            for step in [Step::Arrive, Step::Take, Step::Grant] {
                model.apply(step);
            }
        }
        prop_assert!(model.sender.has_room(model.window));
    }

    #[test]
    fn the_queue_is_bounded(sizes in vec(0..100_u64, 0..60), messages in 1..20_u64, bytes in 1..300_u64) {
        let (mut bound, mut waiting) = (QueueBound::new(Amount { messages, bytes }), VecDeque::new());
        for size in sizes {
            if bound.enter(size).is_ok() {
                waiting.push_back(size);
            } else if let Some(first) = waiting.pop_front() {
                bound.leave(first);
            }
            let sum = waiting.iter().sum::<u64>();
            prop_assert_eq!(bound.waiting(), Amount { messages: waiting.len() as u64, bytes: sum });
            prop_assert!(waiting.len() as u64 <= messages && (sum <= bytes || waiting.len() == 1));
        }
    }
}
