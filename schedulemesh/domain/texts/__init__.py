"""What sentences and codes say in English and in Chinese: one table, whoever shows them."""
