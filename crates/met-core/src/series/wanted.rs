//! Which columns of a series are read.

/// A set of columns of a table. A question about many jobs needs few of them, and to unpack one takes as long as to find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns(u128);

impl Columns {
    pub const NONE: Columns = Columns(0);
    pub const ALL: Columns = Columns(u128::MAX);

    pub const fn of(columns: &[usize]) -> Columns {
        let (mut set, mut at) = (0, 0);
        while at < columns.len() {
            // What has no bit of its own is in no set but that of all.
            set |= if columns[at] < 128 { 1 << columns[at] } else { u128::MAX };
            at += 1;
        }
        Columns(set)
    }

    pub const fn and(self, other: Columns) -> Columns {
        Columns(self.0 | other.0)
    }

    pub const fn has(self, column: usize) -> bool {
        if column < 128 { self.0 >> column & 1 == 1 } else { self.0 == u128::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let some = Columns::of(&[0, 55]).and(Columns::of(&[127]));
        let has = |set: Columns| (0..200).filter(|&column| set.has(column)).collect::<Vec<_>>();
        assert_eq!(has(some), [0, 55, 127]);
        assert!(has(Columns::NONE).is_empty());
        assert_eq!(has(Columns::of(&[150])), has(Columns::ALL));
        assert_eq!(has(Columns::ALL).len(), 200);
    }
}
