-- Gives out one number: a write that proves that there can be writes. KEYS: number
numbers(KEYS[1], 1)
return 'ok'
