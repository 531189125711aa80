! Kinds of data objects of Fortran. Lines as in kinds.c.
module world
  implicit none
  type :: particle
    real(8) :: x, y
    integer :: charge
  end type
  type(particle), save :: particles(100)
  real(8), save :: field(10, 20)
  real(8), allocatable, save :: cells(:)
end module

program kinds
  use world
  implicit none
  common /shared/ alpha, beta, gamma
  real(8) :: alpha, beta(50)
  integer :: gamma
  alpha = 1; beta = 2; gamma = 3
  allocate(cells(500))
  cells = 4
  call tell('static', loc(alpha), 'shared|.alpha|common /shared/')
  call tell('static', loc(beta(7)), 'shared|.beta[]|common /shared/')
  call tell('static', loc(gamma), 'shared|.gamma|common /shared/')
  call tell('static', loc(particles(5)%charge), 'world::particles|[].charge|particle (100)')
  call tell('static', loc(field(3, 4)), 'world::field|[][]|real(kind=8) (10,20)')
  call tell('heap', loc(cells(100)), 'world::cells|[]|real(kind=8)')
  call work(3)
contains
  subroutine tell(kind, address, rest)
    character(*) :: kind, rest
    integer(8) :: address
    write (*, '(A, A, Z0, A, A)') kind, ' 0x', address, ' ', rest
  end subroutine
  subroutine work(n)
    integer :: n
    type(particle) :: own(4)
    own%y = n
    call tell('stack', loc(own(2)%y), 'own|[].y|particle (4)')
    call wait_here()
    print *, own(n)%y
  end subroutine
  subroutine wait_here()
    write (*, '(A)') 'ready'
    flush(6)
    do
      call sleep(1000)
    end do
  end subroutine
end program
