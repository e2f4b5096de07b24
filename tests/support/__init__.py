"""What the tests share: small networks, programs, federations, and comparisons of trees."""
