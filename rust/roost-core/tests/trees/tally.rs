//! What a run has seen.

/// What has happened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) delivered: u64,
    pub(crate) answered: u64,
    pub(crate) posted: u64,
    pub(crate) lost: u64,
    pub(crate) unreached: u64,
    pub(crate) doubled: u64,
    pub(crate) taken_back: u64,
    pub(crate) overtaken: u64,
    pub(crate) held: u64,
    pub(crate) cuts: u64,
    pub(crate) forgotten: u64,
    pub(crate) deaths: u64,
    /// Answers that the news of their proc's death would have overtaken.
    pub(crate) last_words: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.answered += other.answered;
        self.posted += other.posted;
        self.lost += other.lost;
        self.unreached += other.unreached;
        self.doubled += other.doubled;
        self.taken_back += other.taken_back;
        self.overtaken += other.overtaken;
        self.held += other.held;
        self.cuts += other.cuts;
        self.forgotten += other.forgotten;
        self.deaths += other.deaths;
        self.last_words += other.last_words;
    }
}
