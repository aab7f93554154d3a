//! The names of a struct's fields, as serde reads them.

use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// The keys of a struct; none for other types.
pub fn fields<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // only the names are requested; deserialising fails on purpose
    let _ = T::deserialize(Names(&mut found));
    found
}

/// A deserialiser that stores the requested field names.
struct Names<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom("nothing to read"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(serde::de::Error::custom("nothing to read"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
