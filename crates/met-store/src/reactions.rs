//! What was done about findings: few rows, bounded by user and in all.

use met_core::reaction::{Reaction, ReactionKind};

use crate::error::StoreError;
use crate::query::Queries;
use crate::sql::{self, Sql, Value};
use crate::store::Writer;

/// The version from which on they are kept.
const VERSION: i64 = 7;
/// Acknowledged and muted by one user; of messages that were sent, the newest are remembered.
pub const REACTIONS_PER_USER: i64 = 500;
/// Acknowledged and muted by all.
const ALL_MAX: i64 = 20_000;

/// All that is known, by owner, lineage and rule.
pub fn reactions(queries: &Queries) -> Result<Vec<Reaction>, StoreError> {
    queries.ask(VERSION, |sql| {
        let select = "SELECT owner, lineage, rule, kind, uid, actor, at_ns, until_ns FROM reaction
                      ORDER BY owner, lineage, rule, kind";
        let rows = sql::all(sql, select, &[], |row| {
            let text = |at| Ok(row.get(at).text()?.to_owned());
            let number = |at| row.get(at).known().map(Value::integer).transpose();
            let Some(kind) = ReactionKind::parse(row.get(3).text()?) else { return Ok(None) };
            Ok(Some(Reaction {
                user: text(0)?,
                lineage: text(1)?,
                rule: text(2)?,
                kind,
                uid: number(4)?.and_then(|uid| u32::try_from(uid).ok()),
                by: text(5)?,
                at_ns: row.get(6).integer()?,
                until_ns: number(7)?,
            }))
        })?;
        // A later version may know more kinds.
        Ok(rows.into_iter().flatten().collect())
    })
}

/// Keeps what was done, and forgets what has no effect any more. An error of the change is a message for who made
/// it.
pub fn put_reactions(
    writer: &mut Writer,
    reactions: &[Reaction],
    now_ns: i64,
) -> Result<Result<(), String>, StoreError> {
    let (before, over): (Vec<Reaction>, Vec<Reaction>) =
        self::reactions(writer)?.into_iter().partition(|known| known.is_current(now_ns));
    let after = writer.in_catalogue(|sql| {
        over.iter().try_for_each(|known| remove(sql, known))?;
        let put = "INSERT INTO reaction (owner, lineage, rule, kind, uid, actor, at_ns, until_ns)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                   ON CONFLICT (owner, lineage, rule, kind) DO UPDATE SET uid = excluded.uid,
                       actor = excluded.actor, at_ns = excluded.at_ns, until_ns = excluded.until_ns";
        let room = room(sql, &before, reactions)?;
        if room.is_ok() {
            for one in reactions {
                let values = [
                    (&one.user).into(),
                    (&one.lineage).into(),
                    (&one.rule).into(),
                    one.kind.name().into(),
                    one.uid.into(),
                    (&one.by).into(),
                    one.at_ns.into(),
                    one.until_ns.into(),
                ];
                sql.execute(put, &values)?;
            }
            for one in reactions.iter().filter(|one| one.kind == ReactionKind::Sent) {
                forget_old_messages(sql, &one.user)?;
            }
        }
        Ok(room)
    })?;
    Ok(after)
}

/// Takes back what was acknowledged or muted, and returns how much that was.
pub fn clear_reactions(
    writer: &mut Writer,
    user: &str,
    lineage: &str,
    rules: &[String],
) -> Result<usize, StoreError> {
    let mut known = reactions(writer)?;
    known.retain(|one| {
        one.kind != ReactionKind::Sent
            && one.user == user
            && one.lineage == lineage
            && rules.contains(&one.rule)
    });
    writer.in_catalogue(|sql| known.iter().try_for_each(|one| remove(sql, one)))?;
    Ok(known.len())
}

/// Forgets what was done.
pub fn remove_reactions(writer: &mut Writer, reactions: &[Reaction]) -> Result<(), StoreError> {
    if reactions.is_empty() {
        return Ok(());
    }
    writer.in_catalogue(|sql| reactions.iter().try_for_each(|one| remove(sql, one)))
}

fn remove(sql: &dyn Sql, one: &Reaction) -> Result<(), StoreError> {
    let statement = "DELETE FROM reaction WHERE owner = ?1 AND lineage = ?2 AND rule = ?3 AND kind = ?4";
    let values = [(&one.user).into(), (&one.lineage).into(), (&one.rule).into(), one.kind.name().into()];
    sql.execute(statement, &values).map(drop)
}

fn forget_old_messages(sql: &dyn Sql, user: &str) -> Result<(), StoreError> {
    let statement = "DELETE FROM reaction WHERE owner = ?1 AND kind = 'sent' AND at_ns <
                         (SELECT min(at_ns) FROM (SELECT at_ns FROM reaction WHERE owner = ?1 AND kind = 'sent'
                                                  ORDER BY at_ns DESC LIMIT ?2) AS newest)";
    sql.execute(statement, &[user.into(), REACTIONS_PER_USER.into()]).map(drop)
}

/// Whether there is room for more.
fn room(sql: &dyn Sql, before: &[Reaction], more: &[Reaction]) -> Result<Result<(), String>, StoreError> {
    let key = |one: &Reaction| (one.user.clone(), one.lineage.clone(), one.rule.clone(), one.kind);
    let known: std::collections::HashSet<_> = before.iter().map(key).collect();
    let is_new = |one: &&Reaction| one.kind != ReactionKind::Sent && !known.contains(&key(one));
    let new: Vec<&Reaction> = more.iter().filter(is_new).collect();
    let count = |statement: &str, values: &[Value<'_>]| {
        Ok::<i64, StoreError>(
            sql::first(sql, statement, values, |row| row.get(0).integer())?.unwrap_or_default(),
        )
    };
    if count("SELECT count(*) FROM reaction WHERE kind <> 'sent'", &[])? + new.len() as i64 > ALL_MAX {
        return Ok(Err(format!("more than {ALL_MAX} findings are acknowledged or muted")));
    }
    for one in &new {
        let of_user = "SELECT count(*) FROM reaction WHERE owner = ?1 AND kind <> 'sent'";
        let count = count(of_user, &[(&one.user).into()])?;
        if count + new.len() as i64 > REACTIONS_PER_USER {
            return Ok(Err(format!(
                "a user may acknowledge or mute {REACTIONS_PER_USER} findings; take some back with `met unmute`"
            )));
        }
    }
    Ok(Ok(()))
}
