"""Expressions and small templates that chat_template_fixtures.py asks jinja2 about, and random ones."""

VARIABLES = {
    "n": 7, "zero": 0, "neg": -3, "x": 2.5, "big": 9007199254740993, "t": True, "f": False, "nil": None,
    "s": "Hello, Wörld", "pad": "  two  words \n", "empty": "", "html": "<a href=\"x\">&'</a>",
    "multi": "one\ntwo\r\n\nthree\u2028four", "uni": "ǆ straße ﬁn ΟΔΟΣ İ \U0001d518 e\u0301",
    "l": [3, 1, 2], "names": ["bob", "Al", "cy", "al"], "nested": [[1, [2, "x"]], {"k": [None, True]}, 1.0],
    "none_list": [], "d": {"b": 1, "a": {"c": [1, 2]}, "items": "mine", "é": 2.0}, "none_dict": {},
    "users": [{"name": "Ann", "age": 30, "tags": ["x", "y"]}, {"name": "bo", "age": 25, "on": True},
              {"name": "Cy", "age": 30, "tags": []}],
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ 7 // -2 ~ ' ' ~ -7.5 // 2
7 % 3 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 % -3 ~ ' ' ~ -7.5 % 2 ~ ' ' ~ 5.5 % -2
2 ** 10 ~ ' ' ~ 2 ** -1 ~ ' ' ~ 2 ** 3 ** 2 ~ ' ' ~ -2 ** 2
1 / 3
10 / 5
1e16
1e15
123456789.123456789
1e22 ~ ' ' ~ 1.5e-5 ~ ' ' ~ 0.0001 ~ ' ' ~ 1e-4 ~ ' ' ~ 12.0 ~ ' ' ~ -0.0
0x1f + 0b101 + 0o17 + 1_000
1_0.5_0 + 1.
1 / 0
1 // 0
1 % 0
2.0 ** 10000
9223372036854775807
9223372036854775807 - 1
-9223372036854775807 - 1
n - -n
- - n
+t
-x
not n
not none_list
1 + true
true + true
1 + '1'
'a' + 'b' 'c'
'a' * 3 ~ 2 * 'b' ~ '-' * -1
[1] * 2 + [3]
(1, 2) + (3,)
[1] + (2,)
'a' ~ 1 ~ none ~ true ~ 2.0 ~ [1, 'x'] ~ undefined_name
1 < 2 < 3
1 < 3 < 2
1 == 1.0 == true
'a' < 'b' < 'c'
[1, 2] < [1, 3]
(1, 'a') < (1, 'b')
[1] < ['a']
1 < 'a'
none < 1
none == none
none == false
'1' == 1
[1, 2] == [1.0, 2]
[1] == (1,)
{'a': 1} == {'a': 1.0}
undefined_name == none
undefined_name == other_name
undefined_name != 1
undefined_name < 1
2 in l
5 not in l
'ell' in s
'' in s
1 in 'abc'
'b' in d
'zz' not in d
1 in undefined_name
undefined_name in l
undefined_name in s
[1] in d
(1, 2) in [(1, 2)]
3 in range(1, 10, 2)
4 in range(1, 10, 2)
1 in n
n and s
n or s
none_list or 'x'
empty and n
zero or none or ''
n if t
n if f
(n if f) is undefined
n if f else 'no'
'a' if f else 'b' if f else 'c'
(1 if t else 2) + 1
undefined_name
undefined_name.attribute
undefined_name['x']
undefined_name()
undefined_name + 1
1 + undefined_name
undefined_name ~ 'x'
-undefined_name
undefined_name | length
undefined_name | list
undefined_name | upper ~ '|' ~ undefined_name | trim ~ '|' ~ undefined_name | string
undefined_name | join
undefined_name | first is undefined
undefined_name | last is undefined
undefined_name | int
undefined_name | float
undefined_name | abs
undefined_name | tojson
undefined_name | default('x')
undefined_name | d
undefined_name | sort
undefined_name | map('upper') | list
undefined_name | items | list
undefined_name | dictsort
undefined_name | reverse | list
undefined_name | indent
undefined_name | round
undefined_name | sum
undefined_name | min is defined
undefined_name | replace('', 'x')
undefined_name | safe | upper
[undefined_name]
[undefined_name] | join('-')
'-'.join([undefined_name])
undefined_name is defined or nil is defined
undefined_name is iterable and undefined_name is sequence and undefined_name is callable
undefined_name is string or undefined_name is mapping or undefined_name is none
none
None is none
nil.x is defined
nil['x'] is defined
true ~ True ~ false ~ False ~ none ~ None
[true, none, 1.5, 'q', "it's", 'both "\'', '\n\t\\', 'é\x00\x7f\u200b']
{'a': 1, 'b': [1, {'c': (1,)}], 3: 'x', none: 2}
()
(1,)
(1, 2)
1, 2
[]
{}
d
d.a.c[1]
d['a']['c'][-1]
d.items
d['items']
d.items()
d.keys() | list
d.values() | list
d.items() | list
d.keys()
d.values()
d.get('b') ~ d.get('q') ~ d.get('q', 5)
d.get()
d.q is defined
d.q.r
d['q'] is undefined
d[none] is undefined
d[[1]] is undefined
d.b.c is undefined
d.update({'x': 1})
d.update is defined
d.pop('b')
d.copy()
{'a': 1, 'a': 2}
{1: 'a', 1.0: 'b', true: 'c'}
{[1]: 2}
{(1, 2): 3}[1, 2]
dict(a=1, b='x')
dict([('a', 1), ('b', 2)])
dict({'a': 1}, b=2)
dict(1)
none_dict.x is defined
l[0] ~ l[-1] ~ l[1:] ~ l[::-1] ~ l[:-1] ~ l[::2] ~ l[5:] ~ l[-2:2]
l[3] is undefined
l['x'] is undefined
l[1.0] is undefined
l[true]
l[::0]
l['a':]
l.0 ~ l.1
l.append(4)
l.append is defined
l.pop()
l.index(2) ~ l.count(3)
l.index(9)
l.copy()
l.foo is undefined
(1, 2, 1).count(1) ~ (1, 2).index(2)
s[0] ~ s[-1] ~ s[7:] ~ s[::-1] ~ s[1:8:2] ~ s[100:] ~ s[-3:]
s[8] ~ uni[-3] ~ uni[15:18]
s[99] is undefined
s.foo is undefined
s['upper']()
s.upper() ~ s.lower() ~ s.swapcase() ~ s.title() ~ s.capitalize()
uni.upper()
uni.lower()
uni.title()
uni.capitalize()
uni.swapcase()
uni | upper ~ uni | lower ~ uni | title ~ uni | capitalize
uni | length
'ΑΣ. ΑΣΑ Σ ΑΣ́'.lower()
pad.strip() ~ '|' ~ pad.lstrip() ~ '|' ~ pad.rstrip() ~ '|'
'xxabxx'.strip('x') ~ 'xyabyx'.lstrip('xy') ~ 'abyx'.rstrip('xy') ~ 'é á é'.strip('é ')
'\u3000\x1cx\u2003\x85'.strip() | length
s.split() ~ s.split(',') ~ s.split('l', 1) ~ s.split('zz')
pad.split() ~ pad.split(' ') ~ pad.split(none, 1)
''.split() ~ ''.split(',')
s.rsplit('l', 1) ~ pad.rsplit(none, 1) ~ s.rsplit()
s.split('')
s.split(sep='l', maxsplit=1)
s.split(1)
'a,b,,c'.split(',') | length
multi.splitlines()
multi.splitlines(true)
s.startswith('Hell') ~ s.endswith(('x', 'ld')) ~ s.startswith('l', 2) ~ s.endswith('W', 0, 8)
s.startswith(1)
s.startswith([])
s.find('l') ~ s.find('zz') ~ s.rfind('l') ~ s.find('l', 4) ~ s.find('', 20) ~ s.find('ö') ~ s.index('r')
s.index('zz')
s.count('l') ~ s.count('') ~ s.count('l', 3, -1)
s.replace('l', 'L') ~ s.replace('l', 'L', 1) ~ 'abc'.replace('', '-') ~ 'abc'.replace('', '-', 2) ~ s.replace('o', '')
s.replace('l')
s.replace(old='l', new='x')
','.join(['a', 'b']) ~ '-'.join('xyz') ~ ''.join([])
','.join([1])
','.join(5)
'%s-%d-%5.2f-%x-%r' % ('a', 5, 2.345, 255, 'q')
'%s' % 5 ~ '%s' % [1] ~ '%%' % ()
'%s %s' % 'a'
'%s' % ('a', 'b')
'%d' % 'a'
'%(a)s %(b)05d' % {'a': 1, 'b': 22}
'%-5s|%5s|%+d|%05d|% d|%.2s|%#x|%e|%g' % ('a', 'b', 3, -4, 5, 'xyz', 255, 12345.678, 0.00001)
'{} {}'.format(1, 'b') ~ '{1}{0}'.format('a', 'b') ~ '{x}'.format(x=5) ~ '{{}}'.format()
'{0[0]} {1.b} {1[a][c][1]}'.format(l, d)
'{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:,}|{:.2f}|{:+d}|{:x}|{:%}|{!r:>6}'.format('a', 'b', 'c', 'd', 42, 1234567, 2.345, 3, 255, 0.5, 'q')
'{}'.format()
'{} {0}'.format(1)
'{:d}'.format('a')
'{'.format()
s.isdigit() ~ '123'.isdigit() ~ '²'.isdigit() ~ '²'.isdecimal() ~ ''.isdigit() ~ '١'.isdecimal()
'abc'.isalpha() ~ 'ab1'.isalpha() ~ 'ab1'.isalnum() ~ ' \t'.isspace() ~ 'Ab'.istitle() ~ 'AB'.isupper() ~ 'ab'.islower() ~ 'é'.isascii()
'x'.center(5, '*') ~ 'xy'.center(5) ~ '|' ~ 'x'.ljust(3) ~ '|' ~ 'x'.rjust(3, '.') ~ '-7'.zfill(4) ~ 'abcd'.center(7, '-')
'a-b-c'.partition('-') ~ 'a-b-c'.rpartition('-') ~ 'abc'.partition('-') ~ 'abc'.rpartition('-')
'prefix-x'.removeprefix('prefix-') ~ 'x.txt'.removesuffix('.txt') ~ 'x'.removesuffix('')
'a' 'b' | upper
x.is_integer() ~ 2.0.is_integer()
n.foo is undefined
s | length ~ l | length ~ d | count
n | length
s | upper | lower | title | capitalize
'hello-world foo(bar) [baz] <q> it\'s' | title
pad | trim ~ '|' ~ 'xxaxx' | trim('x') ~ '|'
5 | trim ~ none | upper
l | join(', ') ~ l | join ~ 'abc' | join('-') ~ users | join(',', attribute='name') ~ [1, [2]] | join('|')
5 | join
l | first ~ l | last ~ 'abc' | first ~ 'abc' | last ~ d | first ~ d | last
[] | first is undefined
range(3) | last
5 | first
l | sort ~ l | sort(reverse=true) ~ names | sort ~ names | sort(case_sensitive=true) ~ names | sort(true)
users | sort(attribute='age') | map(attribute='name') | list
users | sort(attribute='age,name', reverse=true) | map(attribute='name') | list
[1, 'a'] | sort
[none, 1] | sort
[[2], [1, 5]] | sort
names | unique | list ~ names | unique(true) | list ~ users | unique(attribute='age') | map(attribute='name') | list
[[1], [1]] | unique | list
l | reverse | list ~ 'abc' | reverse ~ (l | reverse | string)
(5 | reverse)
l | sum ~ [0.5, 1] | sum ~ users | sum(attribute='age') ~ [[1], [2]] | sum(start=[]) ~ [] | sum
['a'] | sum
l | min ~ l | max ~ names | min ~ names | max(case_sensitive=true) ~ users | max(attribute='age')
[] | min is undefined
[1, 'a'] | max
users | map(attribute='name') | list ~ users | map(attribute='tags.0', default='-') | list ~ users | map(attribute='on') | list
names | map('upper') | join(',') ~ l | map('string') | list ~ names | map('replace', 'l', 'L') | list ~ [l, names] | map('join', '-') | list
names | map | list
names | map('nosuch') | list
names | map('upper')
names | map('upper') | length
(names | map('upper'))[0] is undefined
l | select('odd') | list ~ l | reject('odd') | list ~ l | select('gt', 1) | list ~ [0, 1, ''] | select | list ~ l | select('divisibleby', 3) | list
users | selectattr('on') | list | length ~ users | rejectattr('age', 'equalto', 30) | map(attribute='name') | list ~ users | selectattr('tags', 'defined') | list | length
users | selectattr('age', 'gt') | list
l | select('nosuch') | list
users | selectattr | list
l | batch(2) | list ~ l | batch(2, 'x') | list ~ [] | batch(2) | list ~ l | batch(0) | list
d | items | list
l | items | list
d | dictsort ~ {'B': 2, 'a': 1} | dictsort ~ {'B': 2, 'a': 1} | dictsort(true) ~ {'B': 2, 'a': 1} | dictsort(by='value', reverse=true)
l | dictsort
'42' | int ~ ' 42 ' | int ~ '4.9' | int ~ 'x' | int ~ 'x' | int(5) ~ 4.9 | int ~ -4.9 | int ~ none | int ~ true | int ~ '0x1f' | int(0, 16) ~ '1_000' | int ~ '٣' | int ~ '1e3' | int
'0b11' | int(0, 0) ~ '0o17' | int(base=8) ~ '12' | int(base=3) ~ '9' | int(base=3) ~ '-0x1F' | int(base=16) ~ '' | int ~ '--1' | int
'inf' | int ~ 'nan' | int
('inf' | float) | int
'4.5' | float ~ 'x' | float ~ 'x' | float(1.5) ~ 3 | float ~ ' 1e3 ' | float ~ 'inf' | float ~ '-Infinity' | float ~ 'nan' | float ~ none | float ~ '1_0.5' | float
2.5 | round ~ 3.5 | round ~ 2.675 | round(2) ~ 5 | round ~ 2.1 | round(0, 'ceil') ~ 2.9 | round(method='floor') ~ -2.5 | round ~ 42.555 | round(1, 'ceil') ~ true | round
'a' | round
2.5 | round(1, 'up')
-5 | abs ~ -2.5 | abs ~ true | abs
'a' | abs
5 | string ~ none | string ~ [1] | string ~ 'x' | string | length
'abc' | list ~ d | list ~ range(3) | list ~ 5 | string | list
5 | list
nil | default('x') ~ nil | default('x', true) ~ empty | d('y', boolean=true) ~ zero | default(1, true)
html | e ~ html | escape | e ~ html | safe ~ (html | safe | e) ~ (html | e | string)
(html | e) ~ '<' ~ ('<' | e) + '<' ~ '<' + ('<' | e)
('a' | safe) is escaped ~ 'a' is escaped ~ ('a' | safe | upper) is escaped
[html | e]
('<' | safe).join(['<', '>']) ~ ('a<' | safe).replace('a', '<')
'a\nb\n\nc' | indent ~ '|' ~ 'a\nb\n\nc' | indent(2, true) ~ '|' ~ 'a\nb\n\nc' | indent('> ', blank=true) ~ '|' ~ 'a\n' | indent
5 | indent
'one two three four five' | truncate(12) ~ 'one two three' | truncate(9, true) ~ 'one two three' | truncate(9, false, '..', 0) ~ 'short' | truncate(3)
'one two' | truncate(1)
'x' | center(7) ~ '|'
'%s=%d' | format('a', 5) ~ '%(x)s' | format(x=1)
'abc' | replace('b', 5) ~ 'aaa' | replace('a', 'b', 2) ~ 5 | replace(5, 6)
s | attr('upper') is callable ~ (d | attr('b') is undefined)
d | tojson
nested | tojson
nested | tojson(indent=2)
d | tojson(indent=0)
d | tojson(separators=(',', ':'))
d | tojson(indent=1, separators=(', ', ' = '), sort_keys=true)
d | tojson(ensure_ascii=true) ~ uni | tojson(true)
[[], {}, [[]]] | tojson(indent=4)
d | tojson(indent='--')
'</script>&\'"\\/\b\f\x1f\x7f\u2028' | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
(1, 2) | tojson ~ 1e22 | tojson ~ 1.0 | tojson ~ ('nan' | float) | tojson ~ ('-inf' | float) | tojson
range(2) | tojson
d.items() | tojson
{'b': 1, 1: 2} | tojson(sort_keys=true)
html | safe | tojson
'x' | nosuch
'x' is nosuch
n is odd ~ n is even ~ n is divisibleby 7 ~ n is divisibleby(2) ~ 2.0 is even
'a' is odd
s is string ~ n is string ~ n is number ~ t is number ~ x is number ~ t is boolean ~ n is integer ~ t is integer ~ x is float ~ n is float
d is mapping ~ l is mapping ~ l is sequence ~ s is sequence ~ d is sequence ~ n is sequence ~ l is iterable ~ n is iterable ~ range(3) is sequence ~ d.keys() is sequence ~ d.keys() is iterable
nil is none ~ n is none ~ t is true ~ t is false ~ f is false ~ 1 is true
n is eq 7 ~ n is equalto 7 ~ n is ne 7 ~ n is gt 3 ~ n is ge 7 ~ n is lt 3 ~ n is le 3 ~ n is greaterthan 3 ~ n is lessthan 3
n is in l ~ 3 is in(l) ~ n is not in l ~ 'a' is in 'abc'
'abc' is lower ~ 'ABC' is upper ~ '1' is upper ~ 5 is lower
range is callable ~ s.upper is callable ~ n is callable ~ dict is callable
nil is sameas none ~ t is sameas true ~ 1 is sameas true
'upper' is filter ~ 'urlize' is filter ~ 'nosuch' is filter ~ 'odd' is test ~ 'nosuch' is test
n is defined and n is not none
not n is defined
n is not defined or n is odd
n is defined is true
n is string is none
n is gt
n is defined(1)
range(5) ~ range(1, 5) | list ~ range(5, 0, -2) | list ~ range(0) | list ~ range(3)[1] ~ range(10)[2:5] ~ range(10)[::-3] | list ~ range(3) | length
range(1, 10, 0)
range(100001)
range('a')
range(1.5)
range(3) == range(0, 3)
namespace(a=1).a ~ namespace({'b': 2}).b ~ namespace(a=1)
namespace(a=1).b is undefined
namespace(_a=1)
namespace(a=1)['a']
cycler('a', 'b').next()
cycler()
joiner() ~ 1
strftime_now is defined
strftime_now('%Y')
raise_exception('stop')
raise_exception is callable
lipsum is defined
s.__class__ is defined
s.__class__.x
d.__init__ is defined
s._x is defined
[1, 2, 3,]
{'a': 1,}
(1 ,)
l[0,]
d.get(*['b'])
d.get(**{'key': 'b'})
dict(**{'a b': 1})
s.upper(1)
s.upper(x=1)
'a' if 'b' in 'abc' and not 'z' in 'abc' else 'c'
1 if 1 else 2 if 0
((((1))))
[[[[[[1]]]]]]
{'a': {'b': {'c': 1}}}.a.b.c
'a'.upper().lower().title()
'\x41\u00e9\U0001F600\101\n\q\'\"' | length
'\é\q'
'a
b'
"it's" ~ 'say "x"'
'\u0041' == 'A'
'\x4'
-5 % 3 ~ -(5 % 3) ~ - 5 | abs
1 - 1 ~ 1 -1 ~ 1-1
3 - -3
2 * 3 ~ 'x'
'a' ~ 'b' * 2
'a' ~ 1 + 1
1 ~ 2 + 3
not 1 == 2
not true and false
true or false and false
1 in [1] == true
'a' 'b' in 'abc'
n.
n..a
n +
(1
1)
[1
{1}
{'a'}
'abc
a b
1 2
| upper
n |
n | 5
n is
f(
f(a=1, 2)
f(a=1, a=2)
*l
n = 5
n ; n
n @ n
n $
1 ? 2 : 3
n && t
lambda x: x
[i for i in l]
a.b.c = 1
""".strip("\n").replace("'a\nb'", "'a\\nb'").split("\n")

TEMPLATES = [
    "{% for i in l %}{{ i }}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }},{% endfor %}{{ loop is defined }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for i in none_list %}x{% else %}none{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}/{{ loop.length }} {% else %}none{% endfor %}",
    "{% for i in l if i > 5 %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for i in [1] %}{% continue %}{% else %}E{% endfor %}",
    "{% for i in [1] %}{% break %}{% else %}E{% endfor %}",
    "{% for i in n %}{% endfor %}", "{% for i in nil %}{% endfor %}", "{% for i in undefined_name %}x{% else %}e{% endfor %}",
    "{% for i in s %}{{ i }}.{% endfor %}", "{% for i in range(3) %}{% for j in range(i) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% for i in l %}{{ loop }}{% endfor %}", "{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{% endfor %}",
    "{% for i in l %}{% set loop = 1 %}{% endfor %}", "{% set loop = 1 %}{{ loop }}{% for i in l %}{{ loop.index }}{% endfor %}",
    "{% set a = 1 %}{% for i in l %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace() %}{% set ns.x, ns.y = 1, 2 %}{{ ns.x + ns.y }}{{ ns }}",
    "{% set d.x = 1 %}", "{% set q.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = [1] %}", "{% set (a, b), c = (1, 2), 3 %}{{ a }}{{ b }}{{ c }}",
    "{% set a %}x{{ n }}y{% endset %}{{ a }}{{ a | length }}", "{% set a | upper | replace('X', 'z') %}x{{ n }}y{% endset %}{{ a }}",
    "{% set s %}{{ s }}{% endset %}{{ s }}", "{% if t %}{% set s = s ~ '!' %}{% endif %}{{ s }}", "{% if f %}{% set s = 1 %}{% endif %}{{ s }}",
    "{{ s }}{% set s = 1 %}{{ s }}", "{% for i in l %}{{ s }}{% endfor %}{% set s = 1 %}", "{% for i in l %}{{ q }}{% set q = i %}{{ q }}{% endfor %}{{ q }}",
    "{% for i in l %}{% if loop.first %}{% set q = 'f' %}{% endif %}{{ q }}{% endfor %}", "{% set q = 0 %}{% for i in l %}{% if loop.first %}{% set q = 'f' %}{% endif %}{{ q }}{% endfor %}{{ q }}",
    "{% for n in l %}{{ n }}{% endfor %}{{ n }}", "{% for i in l %}{% for i in 'ab' %}{{ i }}{% endfor %}{{ i }}{% endfor %}",
    "{% macro m(a, b=2, c=b) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }} {{ m(1, c=0) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{{ m(1) }}{% macro m(a) %}{{ a }}{% endmacro %}", "{% macro m() %}{{ n }}{{ q }}{% endmacro %}{% set q = 5 %}{{ m() }}",
    "{% set q = 1 %}{% macro m() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ m() }}", "{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}", "{% if t %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m }}{{ m is callable }}{{ m.name }}", "{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m('x') | upper }}{{ m('x') ~ 1 }}{{ l | map('string') | map('upper') | list }}",
    "{% set f = s.upper %}{{ f() }}", "{% set g = names | map('upper') %}{{ g | list }}{{ g | list }}", "{% set g = names | select %}{{ 'y' if g else 'n' }}{{ g | first }}{{ g | list }}",
    "{% set ns = namespace(c=0) %}{% for i in l | map('string') if ns.c < 2 %}{% set ns.c = ns.c + 1 %}{{ i }}{% endfor %}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter trim | replace('a', 'b') %}  aa  {% endfilter %}", "{% filter nosuch %}x{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with n = n + 1 %}{{ n }}{% endwith %}{{ n }}",
    "{% if n is nosuch %}x{% endif %}", "{% if f %}{{ n | nosuch }}{% endif %}ok", "{{ n | nosuch if f else 'ok' }}", "{% if f %}{% for i in l %}{{ i | nosuch }}{% endfor %}{% endif %}",
    "{% if n %}1{% elif s %}2{% else %}3{% endif %}{% if zero %}1{% elif s %}2{% else %}3{% endif %}{% if zero %}1{% elif empty %}2{% else %}3{% endif %}",
    "{% if f %}{% elif t %}{% set q = 1 %}{% else %}{% set q = 2 %}{% endif %}{{ q }}", "{% if n, s %}x{% endif %}",
    "{%- if t -%}  a  {%- endif -%}  b", "  {% if t %}  a\n  {% endif %}\n  b", "  {%+ if t %}\n  a\n  {%+ endif +%}\n  b", "a\n\n{{ n }}\n\nb\n", "a\r\nb\rc\r\n",
    "x {# c #} y\n{# c #}\nz{#- c -#} w", "{# unclosed", "{% raw %}{{ x }}{% endraw %}", "{% raw -%}  x  {%- endraw -%}  y", "{% raw %}x", "  {% raw %}\n a {% endraw %}\nb",
    "{{ '{{' }}{{ '%}' }}{{ {'a': {'b': 1}}}}", "{{ n }", "{{ n", "{% if t %}", "{% if t", "{% endif %}", "{% nosuch %}", "{% %}", "{{ }}", "{{}}", "}}", "%}", "#}", "{", "{ {",
    "{% generation %}a{% endgeneration %}b{% generation %}{{ uni }}{% endgeneration %}", "{% for i in l %}{% generation %}{% set n = i %}{{ n }}{% endgeneration %}{{ n }}{% endfor %}",
    "{% generation %}a", "{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% break %}", "{% for i in l %}{% endfor %}{% continue %}",
    "{% set a = 1 %}{{ a }}{% set a = none %}{{ a }}", "{% set true = 1 %}", "{% set 'a' = 1 %}", "{% set a.b.c = 1 %}", "{% set a[0] = 1 %}", "{% set %}", "{% set a %}", "{% set a = %}",
    "{% for in l %}{% endfor %}", "{% for i l %}{% endfor %}", "{% for i in %}{% endfor %}", "{% for ns.a in l %}{% endfor %}", "{% for i in l %}{% endif %}", "{% else %}",
    "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% macro m(1) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}",
    "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}{{ j() }}",
    "{% for m in users %}{{ m.name }}{% if m.tags %}[{% for t in m.tags %}{{ t }}{{ ',' if not loop.last }}{% endfor %}]{% endif %} {% endfor %}",
    "{% set x = 5 -%}   \n  {{ x }}", "{{- '  a  ' -}}   b", "  {{- n -}}  ", "\n  {%- set a = 1 %}\n{{ a }}", "{{ n }}\n{% set a = 1 %}\n{{ a }}\n",
    "{% if t %}\n  x\n{% endif %}\n", "\t{% if t %}\tx{% endif %}\t", "a {% if t %} b {% endif %} c", "a\n   {{ n }}   \nb", "{{+ n }}", "{{ n +}}", "{%- set a = 1 +%}\n{{ a }}",
]


NAMES = ["a", "b", "c", "n", "s", "m", "loop.index", "ns.x", "loop.last", "ns.y"]


def random_program(r, depth=0, in_loop=False, in_body=False):
    """Statements in statements, which set and print a few names: what is whose variable."""
    out = []
    for _ in range(r.randrange(1, 4)):
        kind = r.randrange(14 if depth < 3 else 5)
        name, other = r.choice(NAMES[:5]), r.choice(NAMES)
        inner = lambda loop=in_loop, body=in_body: random_program(r, depth + 1, loop, body)
        if kind < 2:
            out.append("{{ " + r.choice([name, other]) + " }}.")
        elif kind < 4:
            value = r.choice([other, "1", "'q'", f"{name} ~ {r.choice(NAMES[:5])}", f"({other} or 0)", "none"])
            out.append("{% set " + r.choice([name, name, name, "ns.x", "ns.y"]) + " = " + value + " %}")
        elif kind == 4:
            out.append(r.choice(["{% break %}", "{% continue %}"]) if in_loop and r.random() < 0.3 else "-")
        elif kind < 7:
            end = "{% else %}" + inner() if r.random() < 0.4 else ""
            elif_ = "{% elif " + other + " %}" + inner() if r.random() < 0.3 else ""
            out.append("{% if " + r.choice([name, "not " + name, name + " is defined", other]) + " %}" + inner() + elif_ + end + "{% endif %}")
        elif kind < 10:
            test = " if " + r.choice([name, "ns.x", name + " != 2"]) if r.random() < 0.3 else ""
            end = "{% else %}" + inner() if r.random() < 0.3 else ""
            over = r.choice(["[1, 2]", "range(3)", "'xy'", name, "[]", "[none, 1] | select"])
            out.append("{% for " + name + " in " + over + test + " %}" + inner(True) + end + "{% endfor %}")
        elif kind == 10:
            args = r.choice(["", "a", "a, b=c", "b=1, c=b", "n"])
            out.append("{% macro m(" + args + ") %}" + inner(False, True) + "{% endmacro %}")
        elif kind == 11:
            out.append("{{ m(" + r.choice(["", "1", name, "b=2", "1, 2"]) + ") if m is callable and ns.d < 3 }}")
        elif kind == 12:
            out.append("{% set " + name + r.choice([" | upper", ""]) + " %}" + inner(in_loop, True) + "{% endset %}")
        else:
            out.append(r.choice([
                "{% with " + name + " = " + other + " %}" + inner() + "{% endwith %}",
                "{% filter upper %}" + inner(in_loop, True) + "{% endfilter %}",
                "{% generation %}" + inner(False, True) + "{% endgeneration %}" if not in_body else "g"]))
    program = "".join(out)
    return program if depth else "{% set ns = namespace(x=0, d=0) %}" + program


def random_template(r):
    """A template of expressions over VARIABLES, most of which jinja2 renders."""
    kind = r.randrange(8)
    if kind == 0:
        return r.choice(TEMPLATES) + r.choice(["", " ", "\n"]) + r.choice(TEMPLATES)
    if kind == 1:
        body = "{{ " + expression(r, 2) + " }}{{ i }}{{ loop.index if loop.last else loop.length }}"
        return "{% for i in " + expression(r, 1) + " %}" + body + "{% endfor %}"
    if kind == 2:
        return ("{% set q = " + expression(r, 2) + " %}{% if q %}{{ q }}{% else %}{{ " + expression(r, 2) + " }}{% endif %}" +
                "{{ q | string | length }}")
    return " ".join("{{ " + expression(r, r.randrange(1, 4)) + " }}" for _ in range(r.choice([1, 1, 2])))


ATOMS = [*VARIABLES, "undefined_name", "1", "2", "0", "-1", "1.5", "'a'", "'l'", "', '", "''", "none", "true", "[1, 2]",
         "['a', 'b']", "{'a': 1}", "(1, 'x')", "range(4)", "users[0]", "d.a", "'%s'", "'{}'", "multi", "uni", "html | e"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "list", "first", "last", "join", "string", "int",
           "float", "abs", "round", "sum", "min", "max", "sort", "unique | list", "reverse | list", "tojson", "default('z')",
           "d('z', true)", "items | list", "dictsort", "map('string') | list", "select | list", "reject('none') | list",
           "map('upper') | list", "selectattr('age') | list", "map(attribute='name') | list", "batch(2) | list", "indent",
           "escape", "safe", "replace('l', 'L')", "truncate(5)", "center(9)", "tojson(indent=1)", "format(1)",
           "sort(reverse=true)", "join('-')", "tojson(sort_keys=true)", "select('string') | list", "map('length') | list"]
METHODS = ["upper()", "lower()", "strip()", "split()", "split('l')", "startswith('H')", "endswith('d')", "replace('l', 'x')",
           "title()", "splitlines()", "find('o')", "count('l')", "items()", "keys()", "values()", "get('a')", "index(1)",
           "rstrip('d')", "lstrip('H')", "isdigit()", "isupper()", "join(names)", "name", "age", "a", "b", "c", "0", "zfill(5)",
           "partition(' ')", "rsplit(' ', 1)", "format(1, 2)", "capitalize()", "swapcase()", "center(20, '.')", "append(1)", "q"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean",
         "true", "false", "odd", "even", "callable", "lower", "upper", "eq 1", "gt 1", "in l", "divisibleby 2", "escaped",
         "sameas none", "ne 'a'"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


def expression(r, depth):
    if depth == 0:
        return r.choice(ATOMS)
    kind = r.randrange(12)
    inner = expression(r, depth - 1)
    if kind < 3:
        return f"({inner}) | {r.choice(FILTERS)}"
    if kind < 5:
        return f"({inner}).{r.choice(METHODS)}"
    if kind == 5:
        return f"({inner}) is {r.choice(['', 'not '])}{r.choice(TESTS)}"
    if kind == 6:
        return f"({inner})[{expression(r, 0)}]"
    if kind == 7:
        bounds = [r.choice(["", "1", "-1", "0", "2", "-3", "10", "n"]) for _ in range(3)]
        inner = r.choice(list(VARIABLES))  # jinja2 slices a literal by other rules, as it compiles.
        return f"({inner})[{':'.join(bounds[:r.choice([2, 3])])}]"
    if kind == 8:
        return f"({inner} if {expression(r, 0)} else {expression(r, depth - 1)})"
    if kind == 9:
        return r.choice([f"[{inner}, {expression(r, 0)}]", f"{{'k': {inner}}}", f"({inner}, 1)", f"not {inner}", f"-{inner}"])
    return f"{inner} {r.choice(OPERATORS)} {expression(r, depth - 1)}"
